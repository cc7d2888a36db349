"""Goal: `async for` acks what its body finished and gives back, at once, what it did not.

Method: every way to leave the body, then a look at the counters before the loop runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncConsumer, AsyncQueue


class Oops(Exception):
    pass


async def leave_by_break(c: AsyncConsumer) -> None:
    async for item in c:
        if item.body == b"b":
            break


async def leave_by_return(c: AsyncConsumer) -> bytes | None:
    async for item in c:
        if item.body == b"b":
            return item.body
    return None


async def leave_by_exception(c: AsyncConsumer) -> None:
    try:
        async for item in c:
            if item.body == b"b":
                raise Oops
    except Oops:
        pass


async def leave_by_cancellation(c: AsyncConsumer) -> None:
    async def body(reached: asyncio.Event) -> None:
        async for item in c:
            if item.body == b"b":
                reached.set()
                await asyncio.Event().wait()

    reached = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(body(reached))
            await reached.wait()
            raise Oops
    except* Oops:
        pass


LEAVE = [leave_by_break, leave_by_return, leave_by_exception, leave_by_cancellation]


@pytest.mark.parametrize("durability", ["none", "sync"])
@pytest.mark.parametrize("leave", LEAVE, ids=lambda leave: leave.__name__)
def test_the_item_in_hand_is_ready_again_at_once(
    open_queue: OpenQueue, leave: Callable[[AsyncConsumer], Awaitable[object]], durability: str
) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(durability=durability)) as q, q.consumer() as c:
            await q.put_many([b"a", b"b", b"c"])
            await leave(c)
            stats = q.queue.stats()  # no turn of the loop lies between
            assert (stats.reserved_items, stats.items_acked, stats.items_nacked) == (0, 1, 1)
            item = await c.reserve()
            assert (item.body, item.attempts) == (b"b", 2)
            item.ack()

    asyncio.run(main())


def test_what_the_body_settled_stays_settled(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            await q.put_many([b"a", b"b", b"c"])
            await q.seal()
            seen = []
            async for item in c:
                seen.append((item.body, item.attempts))
                if item.body == b"a":
                    item.ack()
                elif item.body == b"b" and item.attempts == 1:
                    item.nack()
            assert seen == [(b"a", 1), (b"b", 1), (b"b", 2), (b"c", 1)]
            assert len(q.queue) == 0
            with pytest.raises(mpqueue.Sealed):
                await c.reserve()

    asyncio.run(main())


def test_an_item_is_acked_when_the_next_one_is_asked_for(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            await q.put(b"a")
            items = aiter(c)
            await anext(items)
            assert len(q.queue) == 1
            asking = asyncio.create_task(anext(items))
            await asyncio.sleep(0)
            assert len(q.queue) == 0, "before the next one is there"
            asking.cancel()
            await asyncio.wait([asking])
            await q.put(b"b")
            assert (await anext(items)).attempts == 1
            del items, asking  # a task keeps the traceback of how it ended
            item = await c.reserve()
            assert item.attempts == 2
            item.ack()

    asyncio.run(main())


def test_seal_ends_every_loop(open_queue: OpenQueue) -> None:
    """Those that wait while the last items are in other hands too."""

    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            seen = []

            async def work() -> None:
                async for item in c:
                    await asyncio.sleep(0.001)
                    seen.append(item.body)

            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(work())
                await q.put_many([b"%d" % number for number in range(7)])
                await q.seal()
            assert len(seen) == 7
            assert len(q.queue) == 0

    asyncio.run(main())


def test_closing_inside_the_body_gives_the_item_back(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q:
            await q.put(b"a")
            async with q.consumer() as c:
                with pytest.raises(mpqueue.Closed):
                    async for _ in c:
                        await c.close()
            async with q.consumer() as c:
                item = await c.reserve()
                assert item.attempts == 2
                item.ack()

    asyncio.run(main())


def test_codecs_decode_the_items(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(codec="json")) as q, q.consumer() as c:
            await q.put({"a": 1}, headers={"k": "v"})
            await q.put_many([[1], [2]])
            q.put_nowait("three")
            await q.seal()
            seen = [(item.value, item.headers) async for item in c]
            assert seen == [({"a": 1}, {"k": "v"}), ([1], {}), ([2], {}), ("three", {})]

    asyncio.run(main())
