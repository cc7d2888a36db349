"""Goal: an item that cannot be decoded stays where it is, is told by its id, and can be passed,
whatever takes it.

Method: one planted between good ones; every way to take meets it. What a synchronous consumer does
with its own item is in test_typed_queue.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncQueue


@pytest.fixture
def planted(open_queue: OpenQueue) -> mpqueue.Queue[Any]:
    """Items 1, "not JSON" and 3."""
    q: mpqueue.Queue[Any] = open_queue(codec="json")
    q.put(1)
    with open_queue(raw=True) as raw:
        raw.put(b"not JSON")
    q.put(3)
    return q


def _rest(q: mpqueue.Queue[Any]) -> list[bytes]:
    with mpqueue.inspect(Path(q.path)) as view:
        return [record.body for record in view.items()]


def _loop(consumer: mpqueue.Consumer[Any]) -> None:
    for item in consumer.drain():
        _ = item.value


def _on_read(consumer: mpqueue.Consumer[Any]) -> None:
    for _ in consumer.drain(ack="on_read"):
        pass


def _take(consumer: mpqueue.Consumer[Any]) -> None:
    while consumer.take(0):
        pass


def _block(consumer: mpqueue.Consumer[Any]) -> None:
    while item := consumer.reserve(0):
        with item:
            _ = item.value


@pytest.mark.parametrize(
    ("way", "in_hand"), [(_loop, False), (_on_read, True), (_take, True), (_block, False)]
)
def test_it_stays_is_named_and_can_be_skipped(
    planted: mpqueue.Queue[Any], way: Callable[[mpqueue.Consumer[Any]], None], in_hand: bool
) -> None:
    with planted.consumer() as consumer:
        with pytest.raises(mpqueue.CodecError, match=r"ack\(\) drops it") as info:
            way(consumer)
        item = info.value.item
        assert item is not None
        assert info.value.id == item.id
        assert item.id in str(info.value)
        assert item.body == b"not JSON"
        assert _rest(planted) == [b"not JSON", b"3"]
        assert planted.stats().reserved_items == in_hand
        if in_hand:
            item.nack()
        assert consumer.skip() == item.seq
        way(consumer)
    stats = planted.stats()
    assert (stats.items_acked, stats.items_skipped) == (2, 1)
    assert (stats.lost_items, stats.loss_events, stats.depth) == (0, 0, 0)


def test_get_hands_out_the_next_one_once_it_was_acked(planted: mpqueue.Queue[Any]) -> None:
    assert planted.get() == 1
    with pytest.raises(mpqueue.CodecError) as info:
        planted.get()
    assert info.value.item is not None
    info.value.item.ack()
    assert planted.get() == 3
    planted.task_done()
    planted.task_done()
    with pytest.raises(ValueError, match="too many"):
        planted.task_done()
    assert len(planted) == 0


def test_peek_shows_it_and_says_that_it_is_not_in_hand(planted: mpqueue.Queue[Any]) -> None:
    with planted.consumer() as consumer:
        taken = consumer.take(0)
        assert taken is not None
        peeked = consumer.peek()
        assert peeked is not None
        with pytest.raises(mpqueue.CodecError, match=r"not in hand: skip\(\)"):
            _ = peeked.value
        assert consumer.skip() == peeked.seq
        assert [item.value for item in consumer.drain()] == [3]


def test_async_for_gives_it_back_and_ack_drops_it(planted: mpqueue.Queue[Any]) -> None:
    async def main() -> list[Any]:
        values = []
        async with AsyncQueue(planted) as q, q.consumer() as consumer:
            with pytest.raises(mpqueue.CodecError):
                async for item in consumer:
                    _ = item.value
            assert _rest(planted) == [b"not JSON", b"3"]
            again = await consumer.reserve(0)
            assert again is not None
            assert (again.body, again.attempts) == (b"not JSON", 2)
            await consumer.ack(again)
            planted.seal()
            async for item in consumer:
                values.append(item.value)
        return values

    assert asyncio.run(main()) == [3]


def test_tasks_that_reserve_many_meet_it_alone(planted: mpqueue.Queue[Any]) -> None:
    """What was reserved beside it is not held up."""

    async def main() -> None:
        async with AsyncQueue(planted) as q, q.consumer() as consumer:
            first, broken, last = await consumer.reserve_many(3)
            with pytest.raises(mpqueue.CodecError) as info:
                _ = broken.value
            assert info.value.item is broken
            assert (first.value, last.value) == (1, 3)
            await consumer.ack_many([first, last])
            broken.nack()
            assert consumer.consumer.skip() == broken.seq
            assert len(planted) == 0

    asyncio.run(main())
