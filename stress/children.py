"""The processes of a storm: starting, killing, stopping and burying them.

Every child is a fork of this program, which has imported mpqueue and opened nothing, in a process
group of its own. The storm is the reaper of orphans, so it knows when really all are dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Child:
    """One process that the storm started."""

    pid: int
    kind: str
    name: str
    stderr: Path
    killed: bool = False


class Children:
    """All living children, and what was wrong with the dead ones."""

    def __init__(self, directory: Path) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._directory = directory
        self.living: dict[int, Child] = {}
        self.complaints: list[str] = []
        self.kills: dict[str, int] = {}

    def start(self, kind: str, name: str, body: Callable[[], object]) -> Child:
        """Forks a child that runs `body`; its stderr goes to a file and has to stay empty."""
        stderr = self._directory / f"{name}.err"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # until it is ready for one
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                os.setpgid(0, 0)
                os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
                body()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
                status = 1
            os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        child = self.living[pid] = Child(pid, kind, name, stderr)
        return child

    def of(self, *kinds: str) -> list[Child]:
        """The living children of these kinds."""
        return [child for child in self.living.values() if child.kind in kinds]

    def kill(self, child: Child) -> None:
        """SIGKILL to the child alone: its own forked children live on."""
        child.killed = True
        os.kill(child.pid, signal.SIGKILL)
        self.kills[child.kind] = self.kills.get(child.kind, 0) + 1

    def kill_all(self) -> None:
        """SIGKILL to everybody, orphans included; returns when they are buried."""
        for child in list(self.living.values()):
            self.kill(child)
            self._signal_group(child.pid)
        for pid in self._orphans():
            os.kill(pid, signal.SIGKILL)
        while self._bury(os.WEXITED):
            pass

    @staticmethod
    def _signal_group(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may not yet have made its group
            os.killpg(pid, signal.SIGKILL)

    def _orphans(self) -> list[int]:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(pid) for pid in text.split() if int(pid) not in self.living]

    def bury(self) -> None:
        """Takes notice of the dead without waiting."""
        while self._bury(os.WEXITED | os.WNOHANG):
            pass

    def _bury(self, how: int) -> bool:
        try:
            dead = os.waitid(os.P_ALL, 0, how)
        except ChildProcessError:
            return False
        if dead is None:
            return False
        by_signal = dead.si_code != os.CLD_EXITED
        asked = by_signal and dead.si_status == signal.SIGTERM  # before it could handle that
        child = self.living.pop(dead.si_pid, None)
        if child is None:
            if not by_signal and dead.si_status:
                self.complaints.append(f"an orphan ended with status {dead.si_status}")
            return True
        if child.kind == "cli" and dead.si_status in (0, 128 + signal.SIGKILL, signal.SIGKILL):
            if dead.si_status and not child.killed:  # by timeout -s KILL
                self.kills["cli"] = self.kills.get("cli", 0) + 1
        elif not child.killed and dead.si_status and not asked:
            self.complaints.append(f"{child.name} ended with {dead.si_status}")
        if child.stderr.exists() and child.stderr.stat().st_size:
            self.complaints.append(f"{child.name} said: {child.stderr.read_text()[-2000:]}")
        return True

    def wait_for(self, kinds: tuple[str, ...], seconds: float) -> bool:
        """True when no child of these kinds is left; False when the watchdog's time is over."""
        deadline = time.monotonic() + seconds
        while self.of(*kinds):
            self.bury()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def describe(self) -> str:
        """Where each child is, for the report of a hang."""
        lines = []
        for child in self.living.values():
            lines.append(f"{child.name} pid {child.pid}")
            for fact in ("wchan", "syscall"):
                try:
                    lines.append(f"  {fact}: {Path(f'/proc/{child.pid}/{fact}').read_text()}")
                except OSError as error:
                    lines.append(f"  {fact}: {error}")
        return "\n".join(lines)
