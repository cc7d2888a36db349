"""Goal: whatever is written behind an option, the answer is an exit code and at most one line each.

Method: every option of every verb, taken from the argument tree, meets values that are zero,
negative, far too large, of another kind or empty. Never a traceback; what argparse or the verb
refuses ends with 2 and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from mpqueue.cli import VERBS, build_parser, common

MPQUEUE = [sys.executable, "-P", "-m", "mpqueue"]
CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 74, 124}
VALUES = [
    *("", " ", "0", "00", "-0", "-1", "1", "1.5", "-1.5", "+1", "1e3", "nan", "inf", "-inf"),
    *("9" * 30, "9" * 400, "99999999999G", "1T", "0x10", "\u0661", "none", "group:5", "interval:0"),
    *("text", "-", "/dev/null", "\udcff", "a=b"),
]
# What would really take hours, or the whole machine, is not tried.
LONG = {("bench", "--seconds"), ("bench", "--producers"), ("bench", "--batch")}
ENDLESS = {("metrics", "--listen")}  # serves until it is told to end


def _options() -> Iterator[tuple[str, argparse.Action]]:
    (verbs,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for verb, parser in verbs.choices.items():
        for action in parser._actions:
            if action.nargs != 0 and (action.option_strings or verb in ("set", "demo")):
                yield verb, action


OPTIONS = [(verb, action) for verb, action in _options() if action.dest != "path"]


def _name(action: argparse.Action) -> str:
    return action.option_strings[0] if action.option_strings else action.dest


def test_every_verb_was_walked() -> None:
    with_options = {verb for verb, _ in OPTIONS}
    assert with_options >= set(VERBS) - {"stats", "seal", "verify", "repair", "doctor", "destroy"}


def test_every_option_has_a_help_text() -> None:
    assert [(verb, _name(action)) for verb, action in _options() if not action.help] == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with mpqueue.Queue(path, durability="none", segment_size=1 << 16) as q:
        q.put_many([b"%d" % number for number in range(20)])
        q.seal()
    return path


def _run(words: list[str], where: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MPQUEUE_")}
    return subprocess.run(
        [*MPQUEUE, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=where,
        env={**environment, "TMPDIR": str(where)},
    )


def _values(convert: Callable[[str], object]) -> list[str]:
    """Those that the option's own converter takes, one for each meaning; the verb sees the rest."""
    meanings: dict[str, str] = {}
    for value in VALUES:
        with contextlib.suppress(argparse.ArgumentTypeError):
            meanings.setdefault(repr(convert(value)), value)
    return list(meanings.values())


def _converter(action: argparse.Action) -> Callable[[str], object]:
    def convert(value: str) -> object:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentTypeError
        return action.type(value) if callable(action.type) else value

    return convert


@pytest.mark.parametrize(
    ("verb", "action"), OPTIONS, ids=[f"{verb} {_name(action)}" for verb, action in OPTIONS]
)
def test_an_odd_value_is_answered_by_an_exit_code(
    verb: str, action: argparse.Action, source: Path, tmp_path: Path
) -> None:
    name = _name(action)
    accepted = _values(_converter(action))
    for value in accepted:
        if ((verb, name) in LONG and value not in ("0", "1")) or (verb, name) in ENDLESS:
            continue
        where = tmp_path / "where"
        where.mkdir()
        path = where / "queue"
        if verb in ("get", "peek", "export"):
            shutil.copytree(source, path)
        words = [verb, str(path)]
        if verb == "set":
            mpqueue.Queue(path).close()
        if verb == "bench":
            words += [] if name == "--seconds" else ["--seconds", "10ms"]
        if verb == "top":
            words += ["--once"]
        if verb == "dead":
            words = [verb, "drop", str(path)]
        if verb == "demo":
            words = [verb, "--path", str(path)] if name == "files" else [verb, __file__]
        words += [f"{name}={value}"] if action.option_strings else [value]
        done = _run(words, where)
        said = (words, done.returncode, done.stdout[-300:], done.stderr)
        assert b"Traceback" not in done.stderr, said
        assert done.returncode in CODES, said
        if done.returncode == 2:
            assert done.stderr.count(b"mpqueue: ") <= 2, said
            if verb == "init":
                assert os.listdir(where) == [], said
        shutil.rmtree(where)
    # Refused by argparse: a few stand for all, because the converter has answered already.
    for value in [value for value in VALUES if value not in accepted][:2]:
        words = [verb, str(tmp_path / "none"), f"{name}={value}"]
        done = _run(words if action.option_strings else [verb, value], tmp_path)
        assert done.returncode in ((2, 7) if action.option_strings else CODES), (words, done.stderr)
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", common.OPTIONS)
def test_an_odd_change_of_an_option_is_answered_by_an_exit_code(name: str, tmp_path: Path) -> None:
    path = tmp_path / "queue"
    mpqueue.Queue(path).close()
    for value in _values(common.OPTIONS[name][0]):
        with mpqueue.inspect(path) as view:
            before = dict(view.options)
        done = _run(["set", str(path), f"{name}={value}"], tmp_path)
        assert b"Traceback" not in done.stderr, (value, done.stderr)
        assert done.returncode in (0, 2), (value, done.stderr)
        with mpqueue.inspect(path) as view:
            if done.returncode == 2:
                assert done.stderr.count(b"\n") == 1, (value, done.stderr)
                assert view.options == before
            else:
                assert {k for k in before if view.options[k] != before[k]} <= {name, "interval"}


def test_an_empty_path_is_refused_by_every_verb(tmp_path: Path) -> None:
    for verb in VERBS:
        if verb not in ("bench", "demo"):
            done = _run([verb, "", *(["retain=1s"] if verb == "set" else [])], tmp_path)
            assert done.returncode == 2, (verb, done.stderr)
    assert os.listdir(tmp_path) == []


def test_the_environment_is_as_strict(tmp_path: Path) -> None:
    for verb in ("init", "put"):
        for text in ("0", "-1", "x", "9" * 30, "4097"):
            done = subprocess.run(
                [*MPQUEUE, verb, "queue"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=tmp_path,
                env={**os.environ, "MPQUEUE_SEGMENT_SIZE": text},
            )
            assert done.returncode == 2, done.stderr
            assert done.stderr.count(b"\n") == 1
            assert b"segment_size" in done.stderr.lower()
    assert os.listdir(tmp_path) == []
