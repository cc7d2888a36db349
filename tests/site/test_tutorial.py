"""Goal: docs/tutorial.md is true. Method: run its lines in order; what they print is compared."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCKS = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _shell(block: str, environment: dict[str, str]) -> None:
    """Each line that begins with `$ ` is run; the lines up to the next are what it has to print."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, wanted = step.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True
        )
        assert (done.stdout, done.returncode) == (wanted, 0), (command, done.stderr)


def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mpqueue").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m mpqueue "$@"\n')
    (tools / "mpqueue").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(verbose=False)
    blocks = BLOCKS.findall(PAGE.read_text())
    assert len(blocks) > 8
    for number, (kind, block) in enumerate(blocks):
        if kind == "console":
            _shell(block, environment)
            continue
        test = doctest.DocTestParser().get_doctest(block, names, f"block {number}", None, 0)
        said: list[str] = []
        failed = runner.run(test, out=said.append, clear_globs=False).failed
        names.update(test.globs)
        assert not failed, "".join(said)
