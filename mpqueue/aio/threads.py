"""Threads: the few in which one AsyncQueue does what has to wait for the kernel.

A thread is busy for the time of a flush, or for a slice of a longer wait, never for ever: the
interpreter joins such threads when it exits.
"""

from __future__ import annotations

import asyncio
import os
import threading
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
        self.check_process()
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

    def foreign(self) -> bool:
        """This is a forked child. The threads are not here, and the loop's selector is the parent's
        too: what is taken out of it here is gone there."""
        return self._pid != os.getpid()

    def refusal(self) -> Closed:
        """What a forked child gets."""
        return Closed(
            f"{self._path}: this AsyncQueue belongs to the parent process; wrap the handle "
            "anew here"
        )

    def check_process(self) -> None:
        """Raises Closed in a forked child. First in every call, before it touches anything."""
        if self.foreign():
            raise self.refusal()

    def end(self) -> None:
        """No more jobs; those that run end by themselves."""
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown(wait=False)


class Ending:
    """A job that ends something, in a thread, once. Who awaits it may be cancelled: it goes on.

    done: it has run to its end, in success or in error.
    """

    def __init__(self, threads: Threads, function: Callable[[], None]) -> None:
        self._threads = threads
        self._function = function
        self._running = threading.Lock()
        self._job: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.done = False

    async def wait(self) -> None:
        """Start it, unless it was started; return when it has ended.

        Raises what it raised, once: in the first call that is not cancelled.
        """
        if not self.done:
            job, loop = self._job, asyncio.get_running_loop()
            if job is None or job.done() or job.get_loop() is not loop:
                job = self._job = self._threads.start(self._run)
            await asyncio.shield(job)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        with self._running:  # a job that was started in a loop that is gone may be at it
            if not self.done:
                try:
                    self._function()
                except Exception as error:
                    self._error = error
                self.done = True


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
