"""What tests of `mpqueue exec` need: the real program, and commands that stop where they are told.

No test waits by the clock: a command at the gate says that it is there, and goes on when it may.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import mpqueue
from conftest import OpenQueue

EXEC = [sys.executable, "-P", "-m", "mpqueue", "exec"]


class Arrival(NamedTuple):
    """What a command at the gate says."""

    seq: int
    attempt: int
    group: int


class Gate:
    """Commands say that they are here, and wait to be let go."""

    command = ["sh", "-c", "echo $MPQUEUE_SEQ $MPQUEUE_ATTEMPT $$ >here; read go <go"]

    def __init__(self, where: Path) -> None:
        for name in ("here", "go"):
            os.mkfifo(where / name)
        self._here = os.open(where / "here", os.O_RDWR)
        self._go = os.open(where / "go", os.O_RDWR)
        self._said = b""

    def arrival(self) -> Arrival:
        """The next one to be here; waits for it."""
        while b"\n" not in self._said:
            self._said += os.read(self._here, 4096)
        line, _, self._said = self._said.partition(b"\n")
        return Arrival(*map(int, line.split()))

    def let_go(self, number: int = 1) -> None:
        """So many, of those that are here or come."""
        os.write(self._go, b"\n" * number)

    def close(self) -> None:
        """No one comes any more."""
        os.close(self._here)
        os.close(self._go)


class Rig:
    """A queue, and exec at work on it in a directory."""

    def __init__(self, q: mpqueue.Queue, where: Path) -> None:
        self.q = q
        self.where = where
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: object, **options: object) -> subprocess.Popen[bytes]:
        """`words`: options, "--" and the command."""
        process = subprocess.Popen(
            [*EXEC, self.q.path, *map(str, words)],
            **{"cwd": self.where, "stderr": subprocess.PIPE, **options},
        )
        self._started.append(process)
        return process

    def run(self, *words: object, code: int = 0, **options: object) -> str:
        """With --until-empty; gives what it said on stderr."""
        process = self.start("--until-empty", *words, **options)
        _, said = process.communicate()
        assert process.returncode == code, said
        talk = (said or b"").decode()
        assert "Traceback" not in talk
        return talk

    def letters(self) -> list[tuple[bytes, str, int]]:
        """Body, reason and attempts of each dead letter."""
        return [(letter.body, letter.reason, letter.attempts) for letter in self.q.dead]

    def lines(self, name: str) -> list[str]:
        """Of a file that commands have written."""
        file = self.where / name
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        """Ends what a test has left."""
        for process in self._started:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def until_said(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """The line of stderr with that text; waits for it."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return bytes(line)
    raise AssertionError(f"ended without {text!r}")


def alive(field: int, number: int) -> list[int]:
    """Processes whose parent (field 1) or group (2) that is; zombies are not alive any more.

    Of those that were killed: they are init's to reap, which takes its time.
    """
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[field]) == number and fields[0] not in "ZX":
                found.append(int(name))
    return found


def await_end_of(group: int) -> None:
    """Nobody in it is alive any more."""
    while alive(2, group):
        pass


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


@pytest.fixture
def rig(tmp_path: Path, open_queue: OpenQueue) -> Iterator[Rig]:
    rig = Rig(open_queue(durability="none"), tmp_path)
    yield rig
    rig.close()


def signal_until_ended(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Again and again, as somebody does who presses Ctrl-C; what comes at once is one signal."""
    while process.poll() is None:
        process.send_signal(number)
    return process.returncode
