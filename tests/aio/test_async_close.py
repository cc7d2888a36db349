"""Goal: a close that was cancelled, or that failed, still gives the role and the handle back.

Method: all threads of the AsyncQueue are held by jobs that wait for a gate, so that the job of a
close has not begun when it is cancelled. Who gets the role afterwards proves that it is back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncConsumer, AsyncQueue, threads


def busy(q: AsyncQueue) -> Callable[[], None]:
    """Holds every thread; call what it returns to let them go."""
    gate = threading.Event()
    for _ in range(threads.THREADS):
        q._threads.start(gate.wait)
    return gate.set


async def cancelled(call: Awaitable[object]) -> None:
    task = asyncio.ensure_future(call)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("how", ["again", "with", "by itself", "queue"])
def test_a_close_that_was_cancelled_gives_the_role_back(open_queue: OpenQueue, how: str) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q:
            c = await q.consumer().__aenter__()
            await q.put(b"x")
            item = await c.reserve()
            let_go = busy(q)
            for _ in range(3):
                await cancelled(c.close())
                assert not c.closed
                with pytest.raises(mpqueue.ConsumerBusy):
                    open_queue().consumer()
                with pytest.raises(mpqueue.Closed):
                    await c.reserve()
            let_go()
            if how == "again":
                await asyncio.gather(c.close(), c.close())
            elif how == "with":
                await c.__aexit__(None, None, None)
            elif how == "queue":
                await q.close()
            else:
                while not c.closed:
                    await asyncio.sleep(0)
            assert c.closed
            with open_queue().consumer() as other, other.reserve(0) as again:
                assert again.seq == item.seq

    asyncio.run(main())


def test_a_closed_loop_of_somebody_who_waits_does_not_keep_the_role(open_queue: OpenQueue) -> None:
    q = AsyncQueue(open_queue())
    tasks = []

    async def enter() -> AsyncConsumer:
        c = await q.consumer().__aenter__()
        tasks.extend(asyncio.create_task(c.reserve()) for _ in range(3))
        await asyncio.sleep(0)
        assert len(c._line) == 3
        return c

    async def close(c: AsyncConsumer) -> None:
        await c.close()
        assert c.closed
        open_queue().consumer().close()
        await c.close()
        await q.close()

    loop = asyncio.new_event_loop()
    c = loop.run_until_complete(enter())
    loop.close()
    asyncio.run(close(c))
    for task in tasks:
        task._log_destroy_pending = False


def test_a_close_in_a_loop_that_is_gone_is_waited_for_in_the_next(open_queue: OpenQueue) -> None:
    q = AsyncQueue(open_queue())
    kept: list[AsyncConsumer] = []

    async def first() -> Callable[[], None]:
        kept.append(await q.consumer().__aenter__())
        let_go = busy(q)
        await cancelled(kept[0].close())
        return let_go

    async def second(let_go: Callable[[], None]) -> None:
        closing = asyncio.create_task(kept[0].close())
        await asyncio.sleep(0)
        assert not kept[0].closed
        let_go()
        await closing
        open_queue().consumer().close()
        await q.close()

    loop = asyncio.new_event_loop()
    let_go = loop.run_until_complete(first())
    asyncio.run(second(let_go))
    loop.close()


def test_the_error_of_a_close_is_raised_once_to_who_is_there(open_queue: OpenQueue) -> None:
    class Failing:
        calls = 0

        def close(self) -> None:
            self.calls += 1
            raise mpqueue.FlushFailed(5, "the disk is gone")

    async def main() -> None:
        async with AsyncQueue(open_queue()) as q:
            failing, let_go = Failing(), busy(q)
            ending = threads.Ending(q._threads, failing.close)
            await cancelled(ending.wait())
            let_go()
            with pytest.raises(mpqueue.FlushFailed):
                await ending.wait()
            await ending.wait()
            assert failing.calls == 1
            assert ending.done

    asyncio.run(main())


@pytest.mark.parametrize("consumes", [False, True])
def test_a_close_of_the_queue_that_was_cancelled_closes_it(
    open_queue: OpenQueue, consumes: bool
) -> None:
    async def main() -> None:
        handle = open_queue()
        q = AsyncQueue(handle)
        consumer = q.consumer()
        if consumes:
            await consumer.__aenter__()
        let_go = busy(q)
        task = asyncio.create_task(q.close())
        for _ in range(1 + consumes):  # the consumer's, then the handle's
            for _ in range(3):
                await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not handle.closed
        again = asyncio.create_task(q.close())
        await asyncio.sleep(0)
        assert not again.done(), "the loop is not held up either"
        let_go()
        await again
        assert handle.closed
        assert consumer.closed
        open_queue().consumer().close()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])
@pytest.mark.parametrize("body", [b"x", b"x" * 100_000])
def test_puts_that_wait_for_the_disk_when_the_queue_is_closed_return(
    open_queue: OpenQueue, durability: str, body: bytes
) -> None:
    """They once raised Closed, although their items were in the queue. Puts of what a thread copies
    may come too late: those that raise are not in the queue."""

    async def main() -> None:
        handle = open_queue(durability=durability)
        q = AsyncQueue(handle)
        await q.put(b"first")
        puts = [asyncio.create_task(q.put(b"%d" % number + body)) for number in range(7)]
        await asyncio.sleep(0)
        await q.close()
        results = await asyncio.gather(*puts, return_exceptions=True)
        returned = [result for result in results if isinstance(result, int)]
        assert {type(result) for result in results} <= {int, mpqueue.Closed}
        assert len(returned) == 7 or len(body) > 1
        with open_queue().consumer() as c:
            assert [item.seq for item in c.drain()] == [1, *returned]

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before it has the role", "while it stands by"])
def test_a_close_while_the_consumer_is_entered(open_queue: OpenQueue, when: str) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q:
            holder = open_queue().consumer() if when == "while it stands by" else None
            c = q.consumer(3600)
            let_go = busy(q)
            entering = asyncio.create_task(c.__aenter__())
            await asyncio.sleep(0)
            await c.close()
            let_go()
            with pytest.raises(mpqueue.Closed):
                await entering
            assert c.closed
            if holder is not None:
                holder.close()
            open_queue().consumer().close()

    asyncio.run(main())
