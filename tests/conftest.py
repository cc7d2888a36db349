"""Fixtures of all tests. Nothing here sleeps; queues live on a real disk under tmp_path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from mpqueue import semaphore

# A shell that runs this in the background has interrupts ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["databases"]

OpenQueue = Callable[..., mpqueue.Queue]
RunPython = Callable[..., str]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """A path for a queue in a fresh directory; the queue itself is the test's to make.

    Its semaphore, which lies outside the directory, goes when the test ends.
    """
    path = tmp_path / "spool"
    yield path
    if (path / "meta").exists():
        with contextlib.suppress(mpqueue.MpqueueError), mpqueue.inspect(path) as view:
            semaphore.unlink(f"/mpq-{view.meta.uuid}")


@pytest.fixture
def open_queue(spool: Path) -> Iterator[OpenQueue]:
    """Opens handles on the same queue (small segments unless told) and closes them at the end."""
    handles: list[mpqueue.Queue] = []

    def opener(**options: object) -> mpqueue.Queue:
        if not (spool / "meta").exists():
            options = {"segment_size": 1 << 20, **options}
        handles.append(mpqueue.Queue(spool, **options))
        return handles[-1]

    yield opener
    for handle in reversed(handles):
        handle.close()


@pytest.fixture
def run_python() -> RunPython:
    """Runs a script in a process of its own with warnings as errors; returns what it printed."""

    def runner(script: str, *arguments: object) -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-P",
                "-W",
                "error",
                "-c",
                textwrap.dedent(script),
                *map(str, arguments),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return runner
