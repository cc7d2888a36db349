"""Runs a script of a fork test in an interpreter of its own, without pytest's threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_HEAD = """
import os, signal, sys, threading
import mpqueue, work
from mpqueue import Queue
path = sys.argv[1]
"""


class Script:
    """Call it with a script, which may import what lies in this directory, and its arguments."""

    def __init__(self, directory: Path, spool: Path) -> None:
        self._file = directory / "script.py"  # a file: spawn imports it again
        self._spool = spool

    def __call__(self, text: str, *arguments: object) -> str:
        """Returns what it printed; any failure, warning or word on stderr fails the test."""
        self._file.write_text(_HEAD + textwrap.dedent(text))
        environment = {
            **os.environ,
            "PYTHONPATH": os.fspath(Path(__file__).parent),
            "PYTHONFAULTHANDLER": "1",
            "SPOOL": os.fspath(self._spool),
        }
        command = [sys.executable, "-P", "-W", "error"]
        # Forks under threads are the point here.
        command += ["-W", "ignore:This process:DeprecationWarning"]
        done = subprocess.run(
            [*command, self._file, self._spool, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr, done.stderr
        return done.stdout
