"""One run of the command of `mpqueue exec`, in a process group; and what ends such groups.

A command that outlived exec would still be at work on its item while the next consumer has it. So a
process beside exec, the guard, waits for the end of a pipe that exec alone holds, and then kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    import mpqueue
    from mpqueue.cli.exec_talk import Talk

PREFIX = b"MPQUEUE_H_"
MARK = b"MPQUEUE_EXEC"
FACTS = ("ID", "SEQ", "ATTEMPT", "ENQUEUED_AT", "SOURCE", "KEY", "HEADERS")

# A number that comes is a group, one that comes again is none any more, 0 is an orderly end. Of one
# that began when exec was killed no one may have told: it is found by its mark. The pipe ends only
# when it has been started, because it held the pipe until then; and the mark shows a moment later.
_GUARD = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups, rest = set(), b""
while chunk := os.read(0, 4096):
    *lines, rest = (rest + chunk).split(b"\\n")
    for line in lines:
        groups ^= {int(line)}
if 0 in groups:
    sys.exit()

def marked(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return os.fsencode(sys.argv[1]) in file.read().split(b"\\0") and os.getpgid(pid) == pid

for pause in (0, 0.1):
    time.sleep(pause)
    for pid in [*groups, *(int(name) for name in os.listdir("/proc") if name.isdigit())]:
        try:
            if pid in groups or marked(pid):
                os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
    groups.clear()
"""


def environment(base: Mapping[bytes, bytes], item: mpqueue.Item, path: str) -> dict[bytes, bytes]:
    """What a command is told about its item; nothing of what exec itself was told about another.

    Values of the environment have no NUL: a header or key with one is in MPQUEUE_HEADERS alone, or
    nowhere. Of headers whose names are written alike there, the first one counts.
    """
    found = {
        name: value
        for name, value in base.items()
        if not name.startswith(PREFIX) and name not in _NAMES
    }
    headers = item.headers
    facts = {
        "ID": item.id,
        "SEQ": str(item.seq),
        "ATTEMPT": str(item.attempts),
        "ENQUEUED_AT": f"{item.enqueued_at:.6f}",
        "HEADERS": json.dumps(headers, ensure_ascii=False),
    }
    found.update((f"MPQUEUE_{name}".encode(), value.encode()) for name, value in facts.items())
    found[b"MPQUEUE_SOURCE"] = os.fsencode(path)
    key = item.key
    if key is not None and b"\0" not in key:
        found[b"MPQUEUE_KEY"] = key
    for name, value in headers.items():
        if "\0" not in value:
            word = re.sub(r"[^A-Z0-9]", "_", name.upper(), flags=re.ASCII)
            found.setdefault(PREFIX + word.encode(), value.encode())
    return found


_NAMES = frozenset(f"MPQUEUE_{name}".encode() for name in FACTS)


class Command:
    """A process at work on an item."""

    def __init__(
        self,
        words: list[str],
        guard: Guard,
        item: mpqueue.Item,
        body: bytes | memoryview,
        environ: Mapping[bytes, bytes],
        talk: Talk,
    ) -> None:
        """Starts it. Raises OSError when that cannot be."""
        self.item = item
        self._guard = guard
        self.late = False
        """It took longer than it may, and is being ended."""
        self.cancelled = False
        """It was killed for no fault of its own."""
        self.deadline: float | None = None
        """When something is to be done about it, by the monotonic clock."""
        self.voice = talk.listen()
        stdin = -1
        try:
            stdin = _file_of(body)
            self._process = subprocess.Popen(
                words,
                stdin=stdin,
                stderr=self.voice.writing,
                env={**environ, MARK: guard.mark},
                process_group=0,
                close_fds=False,  # what is our own closes itself, the guard's pipe not too early
            )
        except BaseException:
            talk.forget(self.voice)
            raise
        finally:
            os.close(self.voice.writing)
            if stdin >= 0:
                os.close(stdin)
        self.pid = self._process.pid
        """Of the process, and of its group."""
        guard.tell(self.pid)

    def ended(self) -> bool:
        """It did; its number is still its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def signal(self, number: int) -> None:
        """Sends a signal to all of its group. Not after `finish`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def finish(self) -> int:
        """What it ended with, a negative number for a signal. Waits until it has ended.

        What it has started goes on, unless it was to be ended.
        """
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if self.late or self.cancelled:
            self.signal(signal.SIGKILL)
        self.voice.hear()
        self._guard.tell(self.pid)
        return self._process.wait()


class Guard:
    """The process that kills the groups of commands whose exec has ended without a word."""

    def __init__(self) -> None:
        """Starts it, in a session of its own: no signal to the group of exec is for it."""
        self.mark = secrets.token_hex(16).encode()
        """In the environment of all commands, as `MARK`."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, MARK + b"=" + self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tell(0)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def tell(self, group: int) -> None:
        """Of a group that has begun; or, the second time, that has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # killed: commands can do without it
            self._process.stdin.write(b"%d\n" % group)


def _file_of(body: bytes | memoryview) -> int:
    """In memory and without a name: no one has to feed it to a command that may not read it."""
    descriptor = os.memfd_create("mpqueue-item")
    try:
        rest = memoryview(body)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
