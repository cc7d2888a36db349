"""Processes that bench and demo start: quiet about signals and about their own failures."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from mpqueue.cli import common

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Forks a process. No signal can strike it before it has its own way with signals."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(target, args))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return process


def end_all() -> None:
    """Kills and reaps all that run still."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


def check(processes: list[BaseProcess], role: str) -> None:
    """Raises WorkerFailed when one of them ended by itself with an error; it has said why."""
    for process in processes:
        if process.exitcode:
            raise common.WorkerFailed(f"{role} {process.pid} failed ({process.exitcode})")


class StartLine:
    """Where children wait for each other, and for their parent to let them go.

    Of pipes: a signal handler that raises inside a Barrier of multiprocessing meets its lock in a
    state that its own `with` does not expect.
    """

    def __init__(self) -> None:
        self._arrivals, self._arrive = os.pipe()
        self._start, self._go = os.pipe()

    def __enter__(self) -> StartLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in (self._arrivals, self._arrive, self._start, self._go):
            os.close(descriptor)

    def wait(self) -> None:
        """In a child: until the parent lets all go, or has ended."""
        os.close(self._go)  # the parent's alone, so that its end is seen
        os.write(self._arrive, b".")
        os.read(self._start, 1)

    def let_go(self, processes: list[BaseProcess], timeout: float) -> None:
        """Lets `processes` go when all are there.

        Raises WorkerFailed when one has ended before, or none came for `timeout` seconds.
        """
        missing = len(processes)
        while missing:
            ready = wait([self._arrivals, *(process.sentinel for process in processes)], timeout)
            check(processes, "process")
            if self._arrivals not in ready:
                raise common.WorkerFailed("a process did not start")
            missing -= len(os.read(self._arrivals, missing))
        os.write(self._go, b"." * len(processes))


def _child(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    # Ctrl-C reaches the whole group; the parent alone decides, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        target(*args)
    except Exception as error:
        code = common.exit_code(error)
        if code < 0:
            raise
        common.say(str(error) or type(error).__name__)
        sys.exit(code)
