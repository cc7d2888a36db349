"""AsyncConsumer: the consumer role for the tasks of one event loop.

Tasks that wait stand in a line. The loop watches the consumer's descriptor while somebody stands
there; its callback takes an item for the first in line, then for the next, until nothing is ready,
which clears the descriptor and arms it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Generic

from mpqueue._begun import refuse_again
from mpqueue.aio.threads import Ending, deadline_of, slice_of
from mpqueue.exceptions import Closed, ConsumerBusy, Corrupt, MpqueueError, Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, Self, TypeAlias, overload

    from typing_extensions import TypeVar

    from mpqueue.aio.threads import Threads
    from mpqueue.consumer import Consumer, Item
    from mpqueue.queue import Queue

    T = TypeVar("T", default=bytes)
    R = TypeVar("R")
    Line: TypeAlias = "OrderedDict[asyncio.Future[Any], Callable[[], Any]]"
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["AsyncConsumer"]

_AT_ONCE = 100
"""Takes without a wait after which other tasks of the loop get a turn."""


class AsyncConsumer(Generic[T]):
    """The consumer role; made by `AsyncQueue.consumer()`, taken and given back by `async with`.

    Any number of tasks may reserve at once. Each item goes to one of them, to the one that has
    waited longest. Items are those of the queue's own consumer: `item.ack()` and `item.nack()` are
    plain calls that do not wait, except for acks under the policy sync and `ack(durable=True)`,
    which wait for the disk: await `consumer.ack(item, durable=True)` instead.

    `async for item in consumer` yields items until the queue is sealed and drained. Item i is acked
    when item i + 1 is asked for, unless the body settled it. When the loop is left by `break`,
    `return` or an exception of its body, which the cancellation of its task is, the item in hand is
    nacked at that moment if it was neither acked nor nacked: it is ready again in its place, and
    that hand-out counts as an attempt. Each loop holds one item at most; other tasks may run loops
    over the same consumer.

    A reserve that is cancelled takes nothing: an item that had been taken for it already is ready
    again in its place, and is not counted as an attempt.

    Raises what the consumer raises: Sealed, Corrupt (once a loss, to one task, unless there is
    on_loss), Closed, and ConsumerBusy from `async with`.
    """

    def __init__(
        self,
        queue: Queue[T],
        threads: Threads,
        wait: float | None,
        options: dict[str, Any],
    ) -> None:
        """Use `AsyncQueue.consumer()`."""
        refuse_again(self, "_acks_wait")
        self._queue = queue
        self._threads = threads
        self._standby = wait
        self._options = options
        self._consumer: Consumer[T] | None = None
        self._refuses = False
        self._ending: Ending | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: Line = OrderedDict()
        self._fd = -1
        self._watched = False
        self._at_once = 0
        self._untold: deque[Corrupt] = deque()
        self._acks_wait = False

    # ---- the role

    async def __aenter__(self) -> Self:
        self._threads.check_process()
        if self._consumer is not None or self._refuses:
            raise Closed(f"{self._queue.path}: a consumer is entered once; ask for another one")
        deadline = deadline_of(self._standby or 0)
        while self._consumer is None:
            if self._refuses:
                raise self._refusal()
            left = slice_of(deadline)
            try:
                self._consumer = await self._threads.start(
                    self._queue.consumer, wait=left, **self._options
                )
            except ConsumerBusy:
                if deadline is not None and slice_of(deadline) == 0:
                    raise
            else:
                self._ending = Ending(self._threads, self._consumer.close)
        if self._refuses:  # close() was called meanwhile, and found no role to give back
            await self.close()
            raise self._refusal()
        self._acks_wait = self._queue.options.durability == "sync"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Persist acks and give the role back; what is in hand is ready again. Idempotent.

        Tasks that wait in a reserve get Closed. Cancelled, or failed, the role is given back all
        the same: the job goes on, and calling close() again waits for it.

        Silent in a forked child, where it touches nothing: the role is the parent's.
        """
        if self._threads.foreign():
            return
        self._refuses = True
        while self._line:
            future, _ = self._line.popitem(last=False)
            self._refuse(future)
        self._unwatch()
        if self._ending is not None:
            await self._ending.wait()

    def _refuse(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            with contextlib.suppress(RuntimeError):  # its loop was closed: nobody waits there
                future.set_exception(self._refusal())

    @property
    def closed(self) -> bool:
        """It has no role: before `async with`, once close() has given it back or its handle was
        closed, and in a forked child. False while close() is at work."""
        if self._threads.foreign() or self._consumer is None or self._ending is None:
            return True
        return self._ending.done or (self._consumer.closed and not self._refuses)

    @property
    def consumer(self) -> Consumer[T]:
        """The consumer behind it, for peek(), skip(), rewind(), ack_up_to(). Closed when it has
        none."""
        if self._threads.foreign() or self._refuses or self._consumer is None:
            raise self._refusal()
        return self._consumer

    def _refusal(self) -> Closed:
        if self._threads.foreign():
            return self._threads.refusal()
        how = "was closed" if self._refuses else "is not open: enter it with `async with`"
        return Closed(f"{self._queue.path}: this consumer {how}")

    # ---- reserving

    if TYPE_CHECKING:

        @overload
        async def reserve(self, timeout: None = None) -> Item[T]: ...
        @overload
        async def reserve(self, timeout: float | None) -> Item[T] | None: ...

    async def reserve(self, timeout: float | None = None) -> Item[T] | None:
        """The lowest ready item, or None when nothing came within `timeout` seconds."""
        return await self._take(partial(self.consumer.reserve, 0), timeout)

    async def reserve_many(
        self, n: int, *, max_bytes: int | None = None, timeout: float | None = None
    ) -> list[Item[T]]:
        """What is ready, up to n items of max_bytes together; waits for the first one only.

        The first item may pass max_bytes. [] when nothing came within `timeout` seconds.
        """
        take = partial(self.consumer.reserve_many, n, max_bytes=max_bytes, timeout=0)
        return await self._take(take, timeout) or []

    def __aiter__(self) -> _Items[T]:
        return _Items(self)

    async def _take(self, take: Callable[[], R | None], timeout: float | None) -> R | None:
        deadline = deadline_of(timeout)
        if not self._line:
            self._at_once += 1
            if self._at_once > _AT_ONCE:
                self._at_once = 0
                await asyncio.sleep(0)
                self._threads.check_process()
        if not self._line:  # else it would overtake
            if self._untold:
                raise self._untold.popleft()
            found = take()
            if found:
                return found
        self._at_once = 0
        return None if timeout == 0 else await self._stand_in_line(take, deadline)

    async def _stand_in_line(
        self, take: Callable[[], R | None], deadline: float | None
    ) -> R | None:
        loop = self._watch()
        future: asyncio.Future[R | None] = loop.create_future()
        self._line[future] = take
        timer = None if deadline is None else loop.call_at(deadline, _expire, future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._take_back(future)
            raise
        finally:
            self._line.pop(future, None)
            if timer is not None:
                timer.cancel()

    def _take_back(self, future: asyncio.Future[Any]) -> None:
        """Something was handed to a task that was cancelled before it ran."""
        if self._threads.foreign():
            return
        error = future.exception()
        if error is None:
            found = future.result()
            for item in found if isinstance(found, list) else [found]:
                if item is not None:  # else its time was up
                    item._unreserve()
        elif isinstance(error, Corrupt):  # reported once: somebody else has to hear of it
            for other in self._line:
                if not other.done():
                    other.set_exception(error)
                    return
            self._untold.append(error)

    def _hand_out(self) -> None:
        """The descriptor is readable."""
        if self._threads.foreign():  # a copy of the loop; the descriptor has to stay in it
            return
        if not self._line:
            self._unwatch()
        while self._line:
            future, take = next(iter(self._line.items()))
            if not future.done():
                try:
                    found = take()
                except Exception as error:
                    future.set_exception(error)
                else:
                    if not found:
                        return
                    future.set_result(found)
            self._line.pop(future, None)

    def _watch(self) -> asyncio.AbstractEventLoop:
        self._threads.check_process()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._fd = self.consumer.fileno()
        elif self._loop is not loop:
            raise RuntimeError(f"{self._queue.path}: this consumer belongs to another event loop")
        if not self._watched:
            loop.add_reader(self._fd, self._hand_out)
            self._watched = True
        return loop

    def _unwatch(self) -> None:
        """In its own process only, as all that touches the loop."""
        if self._watched and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._watched = False

    # ---- settling

    async def ack(self, item: Item[T], durable: bool = False) -> None:
        """As `item.ack()`; what has to wait for the disk waits in a thread.

        Cancelled while it waits: the ack may have been made or not.
        """
        self._threads.check_process()
        if durable or self._acks_wait:
            await self._threads.start(item.ack, durable)
        else:
            item.ack()

    async def ack_many(self, items: Iterable[Item[T]], durable: bool = False) -> None:
        """Ack all; the good ones stand when StaleItem is raised for the others."""
        self._threads.check_process()
        items = list(items)
        if durable or self._acks_wait:
            await self._threads.start(self.consumer.ack_many, items, durable)
        else:
            self.consumer.ack_many(items)

    async def dead(self, item: Item[T], reason: str = "rejected") -> None:
        """As `item.dead()`; it waits for the disk in a thread.

        Cancelled while it waits: the item may have been moved or not, and if not, is still in hand.
        """
        self._threads.check_process()
        await self._threads.start(item.dead, reason)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<mpqueue.aio.AsyncConsumer of {self._queue.path!r}{state}>"


class _Items(Generic[T]):
    """One `async for`. It is dropped when the loop is left, and gives back what it holds then.

    An asynchronous generator would be closed by the event loop, at some later time.
    """

    def __init__(self, consumer: AsyncConsumer[T]) -> None:
        self._consumer = consumer
        self._item: Item[T] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item[T]:
        item = self._item
        if item is not None and not item.settled:
            await self._consumer.ack(item)
        self._item = item = None
        try:
            while item is None:
                item = await self._consumer.reserve()
        except Sealed:
            raise StopAsyncIteration from None
        self._item = item
        return item

    def __del__(self) -> None:
        item = self._item
        if item is not None and not item.settled:
            with contextlib.suppress(MpqueueError):
                item.nack()


def _expire(future: asyncio.Future[R | None]) -> None:
    if not future.done():
        future.set_result(None)
