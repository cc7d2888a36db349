"""AsyncQueue: a Queue whose puts may be awaited.

A put has two parts. The claim, which takes microseconds, is tried on the loop; where it would have
to wait it goes to a thread, one put at a time and in the order in which they came. Then the flush
that the policy asks for is waited for in a thread, one for all puts that were claimed meanwhile.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Generic

from mpqueue._begun import refuse_again
from mpqueue.aio.consumer import AsyncConsumer
from mpqueue.aio.threads import Ending, Threads, deadline_of, slice_of
from mpqueue.exceptions import Full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any, Self, overload

    from typing_extensions import Buffer, TypeVar

    from mpqueue.exceptions import Corrupt
    from mpqueue.queue import Queue

    T = TypeVar("T", default=bytes)
    R = TypeVar("R")
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["AsyncQueue"]

_OWN = 2**64 - 1
"""The ticket of a put that wants a flush of its own, under the policy sync."""


class AsyncQueue(Generic[T]):
    """A handle on a queue for one event loop: `AsyncQueue(mpqueue.Queue("spool"))`.

    The handle is `queue`, for all that does not wait: `len(q.queue)`, `q.queue.stats()`. Opening it
    may take time, after a crash of the machine in particular: open it before the loop runs, or with
    `await asyncio.to_thread(mpqueue.Queue, "spool")`.

    Waits happen in at most four threads, which all tasks share, and each AsyncQueue has its own.
    One of them at most waits for room.

    A context manager: leaving `async with` closes the handle.

    It belongs to one process: in a forked child its calls raise Closed before they do anything, but
    for close() and the end of `async with`, which do nothing. `queue` works there.
    """

    def __init__(self, queue: Queue[T]) -> None:
        """Wrap an open handle, which from then on is closed by close()."""
        refuse_again(self, "_consumer")
        self.queue: Queue[T] = queue
        self._threads = Threads(queue.path)
        self._ending = Ending(self._threads, queue.close)
        self._line = asyncio.Lock()
        self._unflushed: list[tuple[int, asyncio.Future[None]]] = []
        self._flushing = False
        self._consumer: Callable[[], AsyncConsumer[T] | None] = lambda: None

    # ---- putting

    if TYPE_CHECKING:

        @overload
        async def put(
            self: AsyncQueue[bytes],
            item: Buffer,
            timeout: float | None = None,
            *,
            headers: Mapping[str, str] | None = None,
            key: bytes | str | None = None,
        ) -> int: ...
        @overload
        async def put(
            self,
            item: T,
            timeout: float | None = None,
            *,
            headers: Mapping[str, str] | None = None,
            key: bytes | str | None = None,
        ) -> int: ...

    async def put(
        self,
        item: Any,
        timeout: float | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int:
        """Put one item, wait for what the durability policy promises, return its seq.

        Waits up to `timeout` seconds for room, then raises Full. Puts of one AsyncQueue that wait
        for room go in in the order in which they came. The time of a flush does not count.

        Cancelled before anything began, the item is not in the queue; while it waits for the disk,
        it is. In between, while a thread waits for room or for the header lock on its behalf, the
        outcome is unknown: it may still be put within a quarter of a second.

        Raises what `Queue.put` raises.
        """
        self._threads.check_process()
        deadline = deadline_of(timeout)
        encode = self.queue._encode
        body: Any = item if encode is None else encode(item)
        claimed = None
        if not self._line.locked():  # else it would overtake
            claimed = self.queue._claim(body, headers, None, key)
        if claimed is None:

            def claim(left: float) -> tuple[int, int | None]:
                return self.queue._claim(body, headers, left, key)

            claimed = await self._in_line(deadline, claim)
        seq, ticket = claimed
        if ticket is not None:
            await self._flushed(ticket)
        return seq

    if TYPE_CHECKING:

        @overload
        def put_nowait(
            self: AsyncQueue[bytes],
            item: Buffer,
            *,
            headers: Mapping[str, str] | None = None,
            key: bytes | str | None = None,
        ) -> int: ...
        @overload
        def put_nowait(
            self,
            item: T,
            *,
            headers: Mapping[str, str] | None = None,
            key: bytes | str | None = None,
        ) -> int: ...

    def put_nowait(
        self,
        item: Any,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int:
        """`Queue.put_nowait`: no wait for room, and no task switch.

        Under sync and group it holds up the loop for the time of a flush; `await put(item, 0)`
        does not.
        """
        self._threads.check_process()
        return self.queue.put_nowait(item, headers=headers, key=key)

    if TYPE_CHECKING:

        @overload
        async def put_many(
            self: AsyncQueue[bytes], items: Iterable[Buffer], *, timeout: float | None = None
        ) -> range: ...
        @overload
        async def put_many(self, items: Iterable[T], *, timeout: float | None = None) -> range: ...

    async def put_many(self, items: Iterable[Any], *, timeout: float | None = None) -> range:
        """Put all of them or none, with one flush; returns their seqs.

        Bounds as of `Queue.put_many`: at most 4,096 items and half a segment, else TooLarge. Done
        in a thread. Cancelled once that began, the outcome is unknown: all are put, or none is.
        """
        self._threads.check_process()
        deadline = deadline_of(timeout)
        encode = self.queue._encode
        bodies = [item if encode is None else encode(item) for item in items]

        def put(left: float) -> range:
            return self.queue._put_encoded(bodies, timeout=left)

        return await self._in_line(deadline, put)

    async def _in_line(self, deadline: float | None, claim: Callable[[float], R]) -> R:
        """claim(seconds) in a thread, in slices, once all that came before are through."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._line.acquire()
        except TimeoutError:
            return await self._threads.start(claim, 0.0)  # it says what is full
        try:
            while True:
                try:
                    return await self._threads.start(claim, slice_of(deadline))
                except Full:
                    if deadline is not None and slice_of(deadline) == 0:
                        raise
        finally:
            self._line.release()

    # ---- flushing

    async def _flushed(self, ticket: int) -> None:
        if ticket in (0, _OWN):  # 0: the next segment is to be prepared
            await self._threads.start(self.queue._await_flush, ticket)
            return
        future = asyncio.get_running_loop().create_future()
        self._unflushed.append((ticket, future))
        if not self._flushing:
            self._flush_next()
        await future

    def _flush_next(self) -> None:
        """One flush for all that were claimed by now: tickets are numbers of flushes, ascending."""
        served, self._unflushed = self._unflushed, []
        newest = max(ticket for ticket, _ in served)

        def done(job: asyncio.Future[None]) -> None:
            self._flushing = False
            error = job.exception()
            for _, future in served:
                if future.done():
                    continue
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
            if self._unflushed:
                self._flush_next()

        job = self._threads.start(self.queue._await_flush, newest)
        self._flushing = True
        job.add_done_callback(done)

    async def flush(self) -> None:
        """Everything that was put before, and all acks, are on the disk when it returns."""
        await self._threads.start(self.queue.flush)

    async def seal(self, undo: bool = False) -> None:
        """No more puts, in any process; the consumer drains, then `async for` ends."""
        await self._threads.start(self.queue.seal, undo)

    # ---- consuming

    def consumer(
        self,
        wait: float | None = None,
        views: bool = False,
        on_loss: Callable[[Corrupt], object] | None = None,
    ) -> AsyncConsumer[T]:
        """The consumer role, taken by `async with`, which raises ConsumerBusy.

        Arguments as for `Queue.consumer`: `wait` seconds to stand by for a live holder to end.
        """
        self._threads.check_process()
        options = {"views": views, "on_loss": on_loss}
        consumer = AsyncConsumer(self.queue, self._threads, wait, options)
        self._consumer = weakref.ref(consumer)
        return consumer

    # ---- the handle

    async def close(self) -> None:
        """Close the consumer, then the handle, as `Queue.close` does. Idempotent.

        Tasks that wait get Closed, but for puts that wait for the disk: they return, as the handle
        is closed when all that was put through it is there. Raises FlushFailed or Poisoned when the
        last flush failed; it is closed all the same. So it is when this is cancelled: the job goes
        on, and calling close() again waits for it. Silent in a forked child, where it touches
        nothing.
        """
        if self._threads.foreign():
            return
        consumer = self._consumer()
        try:
            if consumer is not None:
                await consumer.close()
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._ending.wait()
        finally:
            self._threads.end()  # what was started before goes on

    async def __aenter__(self) -> Self:
        self._threads.check_process()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<mpqueue.aio.AsyncQueue of {self.queue!r}>"
