"""Signals of `mpqueue exec`: noted for its loop, which no exception is to strike in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType

from mpqueue.cli import ECHO_S

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While entered: SIGINT, SIGTERM, SIGHUP and the ends of children make `descriptor` readable.

    What is ignored stays ignored: nohup, and the background jobs of a shell, count on it.
    """

    def __init__(self) -> None:
        self.number = 0
        """The newest signal that is to end the process; 0 before there was one."""
        self.again = False
        """There was a second one: it does not wait."""
        self._since = 0.0

    def __enter__(self) -> Signals:
        self.descriptor, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before = {
            number: signal.getsignal(number)
            for number in _ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        self._before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
        self._bell_before = signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._bell_before)
        os.close(self.descriptor)
        os.close(self._bell)

    def hear(self) -> None:
        """Makes `descriptor` quiet again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            return
        now = time.monotonic()
        if self.number == 0:
            self._since = now
        elif now - self._since > ECHO_S:  # else it is the same one, sent to the group as well
            self.again = True
        self.number = number
