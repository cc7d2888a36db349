"""Threads: the few in which one AsyncQueue does what has to wait for the kernel.

A thread is busy for the time of a flush, or for a slice of a longer wait, never for ever: the
interpreter joins such threads when it exits.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from mpqueue.exceptions import Closed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

THREADS = 4
SLICE = 0.25
"""Seconds that one job waits for room or for the consumer role, at most."""


class Threads:
    """At most THREADS of them, started at need."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._ended = False

    def start(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Run it in a thread; its future is of the running loop. Raises Closed after a fork."""
        if self._pid != os.getpid():
            raise Closed(
                f"{self._path}: this AsyncQueue belongs to the parent process; wrap the handle "
                "anew here"
            )
        loop = asyncio.get_running_loop()
        if self._ended:  # what is closed refuses at once
            future: asyncio.Future[R] = loop.create_future()
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="mpqueue-aio")
        return loop.run_in_executor(self._pool, partial(function, *args, **kwargs))

    def end(self) -> None:
        """No more jobs; those that run end by themselves."""
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def deadline_of(timeout: float | None) -> float | None:
    """The time of the running loop when `timeout` is over; None: never."""
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError("a timeout is a number of seconds >= 0, or None to wait for ever")
    return asyncio.get_running_loop().time() + timeout if timeout < 1e9 else None


def slice_of(deadline: float | None) -> float:
    """Seconds until the deadline, at most SLICE; 0 when it is over."""
    if deadline is None:
        return SLICE
    return min(SLICE, max(0.0, deadline - asyncio.get_running_loop().time()))
