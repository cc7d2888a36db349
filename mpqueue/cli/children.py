"""Processes that bench and demo start: quiet about signals and about their own failures."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
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
