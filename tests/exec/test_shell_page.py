"""Goal: docs/shell.md is true, and the unit files that it names can be used as they are.

Method: run all that it shows, in its order, in one directory; read the units as systemd does.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from mpqueue.cli import build_parser, exec_command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "shell.md").read_text()
UNITS = sorted((DOCS / "examples").glob("*.service"))


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """With the command where a shell finds it."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/mpqueue"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m mpqueue "$@"\n')
    program.chmod(0o700)
    yield tmp_path
    for meta in tmp_path.glob("*/meta"):
        mpqueue.destroy(meta.parent)


def _shell(home: Path, script: str) -> str:
    """What it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=home,
        env={**os.environ, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_everything_that_is_shown_works(home: Path) -> None:
    pipe, worker, orders = _blocks("sh")
    assert _shell(home, pipe).split() == ["one", "two", "three"]
    assert _shell(home, worker).splitlines() == ["1.jpg.gz", "2 of 3.jpg.gz"]
    status, twelve, fifteen, *dead = _shell(home, orders).splitlines()
    assert (status, twelve, fifteen) == ("status 9", "12", "15")
    assert [line.split("  ")[3] for line in dead] == [
        "'exit status 1: out of luck, attempt 2'",
        "'exit status 65: no number: fourteen'",
    ]
    (line,) = _blocks("text")
    fields = line.split(maxsplit=5)
    assert "".join(fields[:5]) == "*/5****"
    with mpqueue.Queue(home / "orders") as q:
        assert len(q) == 2, "put back"
        q.put(b"16\n")
    assert _shell(home, f"{fields[5].strip()} || echo $?") == "9\n"
    assert (home / "ledger").read_text().split() == ["12", "15", "16"]


def test_the_page_names_all_that_a_command_is_told() -> None:
    names = [f"MPQUEUE_{name}" for name in exec_command.FACTS]
    names += [exec_command.MARK.decode(), exec_command.PREFIX.decode() + "NAME"]
    rows = "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    assert [name for name in names if f"`{name}`" not in rows] == []


def test_there_are_units() -> None:
    assert [unit.name for unit in UNITS] == ["mpqueue-exec@.service", "mpqueue-logd@.service"]
    assert [unit.name for unit in UNITS if f"(examples/{unit.name})" not in PAGE] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_commands_of_a_unit_are_commands(unit: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    service = parser["Service"]
    for name in ("ExecStartPre", "ExecStart"):
        words = shlex.split(service[name])
        assert words[:2] == ["/usr/bin/env", "mpqueue"]
        options = [word for word in words if re.fullmatch(r"\$\w+", word)]
        build_parser().parse_args([word for word in words[2:] if word not in options])
    (shown,) = re.findall(r"EXEC_OPTIONS=(.*?)\"", PAGE)
    build_parser().parse_args(["exec", "x", *shlex.split(shown), "--", "true"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    shutil.copy(unit, tmp_path)
    instance = tmp_path / unit.name.replace("@", "@x")
    done = subprocess.run([program, "verify", instance], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
