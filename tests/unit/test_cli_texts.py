"""Goal: what the command line says is true and whole, whoever reads it and through whatever pipe.

Method: its texts are compared with their subjects: bounds with the core's, names with the API's.
"""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue._words import count
from mpqueue.cli import VERBS, build_parser, common, doctor, main, top, top_screen
from mpqueue.cli.stats import histogram_json
from mpqueue.reader import inspect


def _stats(path: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["stats", path, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_user_who_may_only_read_gets_the_same_numbers(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    q = open_queue(durability="none", capacity=10)
    q.put_many([b"a", b"b"])
    joined = _stats(q.path, capsys)

    def refuse(path: str) -> mpqueue.Queue:
        raise PermissionError(errno.EACCES, "not for you")

    monkeypatch.setattr(common, "open_queue", refuse)
    looked = _stats(q.path, capsys)
    assert list(joined) == list(looked)
    assert joined["options"] == looked["options"]
    changing = {"members", "oldest_ready_age_seconds", "waits", "lock_waits"}
    assert {name for name in joined if joined[name] != looked[name]} <= changing


def test_buckets_are_keyed_by_their_very_bounds() -> None:
    histogram = mpqueue.Histogram(
        bounds=mpqueue.stats.SYNC_BOUNDS, counts=(0,) * 20, count=0, sum=0
    )
    keys = list(histogram_json(histogram)["buckets"])
    assert [float(key) for key in keys] == list(mpqueue.stats.SYNC_BOUNDS)
    assert "1.048576" in keys


def test_nothing_is_cut_off_an_error_on_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40)
    look = top.look(str(path))
    text = "\n".join(top_screen.report([top.change(look, look)]))
    assert max(map(len, text.splitlines())) <= 100
    whole = re.sub(r"\s+", "", text)
    assert re.sub(r"\s+", "", look.error) in whole
    assert whole.startswith(str(path))


@pytest.mark.parametrize("verb", VERBS)
def test_the_summary_keeps_its_names(verb: str) -> None:
    """Prometheus and HTTP are not written in small letters."""
    parser = build_parser([verb])
    choices = parser._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    description = dict(choices or {})[verb].description  # type: ignore[arg-type]
    assert description[1:] == f"{VERBS[verb]}."[1:]
    assert description[0].isupper()


BOUNDS: dict[str, tuple[object, ...]] = {
    "segment_size": ("64K", "1G", 65535, (1 << 30) + 4096, 65537),
    "max_segments": ("4 to 8192", 3, 8193),
    "keep_segments": ("0 to 64", 65),
    "capacity": ("1 or more", 0),
    "max_bytes": ("64 or more", 63),
    "max_item": ("1 to 2G", 0, (2 << 30) + 1),
    "interval_items": ("1 to 4294967295", 0, 1 << 32),
    "interval": ("above 0", 0),
    "ack_window": ("multiple of 64 from 64 to 4194304", 0, 65, 4194304 + 64),
    "max_members": ("1 to 65536", 0, 65537),
    "key_window": ("1 to 4194304", 0, 4194305),
    "lease_timeout": ("above 0", 0),
    "max_attempts": ("1 to 65535", 0, 65536),
    "dead_retain": ("above 0", 0),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_help_says_the_bounds_of_an_option(name: str, tmp_path: Path) -> None:
    text = common.OPTIONS[name][1]
    for entry in BOUNDS[name]:
        if isinstance(entry, str):
            assert entry in text
        else:
            given: dict[str, object] = {name: entry}
            with pytest.raises(ValueError, match=name):
                mpqueue.Queue(tmp_path / "queue", **given)  # type: ignore[arg-type]
    inside = {"max_segments": 8192, "keep_segments": 64, "max_bytes": 64, "max_item": 2 << 30}
    inside |= {"interval_items": (1 << 32) - 1, "max_attempts": 65535}
    if name in inside:
        with mpqueue.Queue(tmp_path / "queue", segment_size=1 << 16) as q:
            q.set_options(**{name: inside[name]})
        mpqueue.destroy(tmp_path / "queue")


def test_set_names_the_options_that_can_be_changed(
    open_queue: OpenQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    q = open_queue()
    now = q.options._asdict()
    for name, value in now.items():
        if name in common.FIXED:
            with pytest.raises(ValueError, match="fixed"):
                q.set_options(**{name: value})
        else:
            q.set_options(**{name: value})
    for word in ("foo=1", "capacity"):
        assert main(["set", q.path, word]) == common.USAGE
        listed = capsys.readouterr().err.rpartition(": ")[2].strip().split(", ")
        assert sorted(listed) == sorted(set(now) - set(common.FIXED))


@pytest.mark.parametrize("key_window", [None, 100_000])
def test_the_disk_space_of_a_queue_is_one_number(
    open_queue: OpenQueue, key_window: int | None
) -> None:
    q = open_queue(durability="none", key_window=key_window)
    q.put(b"x", key=None if key_window is None else b"key")
    with inspect(q.path) as view:
        said = next(entry.text for entry in doctor._room(view))
    assert f"the queue uses {common.human_bytes(q.stats().disk_bytes)} " in said


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 items were"), (1, "1 item was"), (2, "2 items were")]
)
def test_one_is_no_plural(number: int, text: str) -> None:
    assert count(number, "item", "were") == text
    assert count(number, "item") == text.rpartition(" ")[0]


def _of_one_or_many(text: str) -> list[str]:
    """Where a plural follows a number that may be 1."""
    return re.findall(r"\{[^{}]+\} (?:items|letters|segments|handles|records|findings)\b", text)


def test_no_text_has_a_plural_behind_a_bare_number() -> None:
    root = Path(mpqueue.__file__).parent
    assert _of_one_or_many('f"{lost} items were"')
    for path in root.rglob("*.py"):
        assert not _of_one_or_many(path.read_text()), path


def test_an_error_of_the_system_names_what_the_user_gave(
    tmp_path: Path, open_queue: OpenQueue, capfd: pytest.CaptureFixture[str]
) -> None:
    q = open_queue(durability="none")
    q.put(b"x")
    missing = str(tmp_path / "nodir" / "file")
    for words in (["logd", q.path, "--file", missing], ["metrics", q.path, "--textfile", missing]):
        assert main(words) == common.IO_ERROR
        assert f"No such file or directory: '{missing}'" in capfd.readouterr().err
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mpqueue", "get", q.path],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (74, b"mpqueue: stdout: No space left on device\n")
    assert len(q) == 1


def test_a_line_that_is_too_long_is_told_the_way_out(open_queue: OpenQueue, tmp_path: Path) -> None:
    q = open_queue(durability="none", max_item=1000)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", "put", q.path],
        input=b"x" * (2 << 20),
        capture_output=True,
    )
    assert done.returncode == common.USAGE
    for word in (b"max_item (1000)", b"--frame", b"--file", b"mpqueue set"):
        assert word in done.stderr


@pytest.mark.parametrize(
    ("policy", "code", "said"),
    [
        (["fail"], common.FULL, b"1 item was put before this"),
        (["drop"], common.OK, b"2 items were dropped"),
        (["block", "--timeout", "1ms"], common.FULL, b"1 item was put before this"),
        (["fail", "--timeout", "1ms"], common.FULL, b"1 item was put before this"),
        (["drop", "--timeout", "1ms"], common.OK, b"2 items were dropped"),
    ],
    ids=["fail", "drop", "block for a time", "fail in time", "drop in time"],
)
def test_what_fits_is_put(open_queue: OpenQueue, policy: list[str], code: int, said: bytes) -> None:
    q = open_queue(durability="none", capacity=3)
    q.put_many([b"a", b"b"])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", "put", q.path, "--on-full", *policy],
        input=b"1\n2\n3\n",
        capture_output=True,
    )
    assert (done.returncode, len(q)) == (code, 3), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["put", "PATH", "--file", __file__, "--lines"],
        ["put", "PATH", "--file", __file__, "--frame", "u32"],
        ["logd", "PATH", "--file", "log", "--backups", "3"],
        ["metrics", "PATH", "--listen", "0", "--openmetrics"],
    ],
    ids=lambda words: " ".join([words[0], *words[-2:]]),
)
def test_an_option_without_effect_is_refused(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "queue"
    assert main([str(path) if word == "PATH" else word for word in words]) == common.USAGE
    assert not path.exists()
