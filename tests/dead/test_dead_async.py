"""Goal: leases and dead letters work for tasks as for threads. Method: real loops, real queues."""

from __future__ import annotations

import asyncio

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncQueue


def test_a_task_moves_an_item_to_the_dead_letters(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            await q.put_many([b"a", b"b"])
            item = await c.reserve()
            await c.dead(item, reason="no")
            assert item.settled
            with pytest.raises(mpqueue.StaleItem):
                await c.dead(item)
            await c.dead(await c.reserve())
            letters = [(letter.body, letter.reason) for letter in q.queue.dead]
            assert letters == [(b"a", "no"), (b"b", "rejected")]

    asyncio.run(main())


def test_a_waiting_task_gets_what_another_one_let_lapse(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(lease_timeout=3600)) as q, q.consumer() as c:
            await q.put(b"job")
            stuck = await c.reserve()
            waiting = asyncio.create_task(c.reserve())
            await asyncio.sleep(0)
            stuck.extend(0.01)
            again = await waiting
            assert (again.seq, again.attempts, stuck.settled) == (stuck.seq, 2, True)
            await c.ack(again)

    asyncio.run(main())


def test_what_is_past_max_attempts_reaches_no_task(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(max_attempts=2)) as q, q.consumer() as c:
            await q.put_many([b"poison", b"good"])
            for _ in range(2):
                item = await c.reserve()
                item.nack(reason="bad")
            item = await c.reserve()
            assert item.body == b"good"
            await c.ack(item)
            assert await c.reserve(0) is None
            assert [letter.body for letter in q.queue.dead] == [b"poison"]

    asyncio.run(main())
