"""Goal: a step between two queues names what its output was made of, and acks last.

Method: look at the header, at repetitions, and at the disk of the second queue when the first acks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from databases import Backend
from mpqueue import pipeline
from mpqueue.inbox import Inbox

Pair = tuple[mpqueue.Consumer, mpqueue.Consumer]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The consumers of two queues."""
    options = {"segment_size": 1 << 20, "durability": "none"}
    with (
        mpqueue.Queue(tmp_path / "a", **options) as a,  # type: ignore[arg-type]
        mpqueue.Queue(tmp_path / "b", **options) as b,  # type: ignore[arg-type]
        a.consumer() as first,
        b.consumer() as second,
    ):
        yield first, second
    for name in ("a", "b"):
        mpqueue.destroy(tmp_path / name)


def _one(consumer: mpqueue.Consumer) -> mpqueue.Item:
    item = consumer.reserve(0)
    assert item is not None
    return item


def test_forward_carries_identity_and_headers(pair: Pair) -> None:
    a, b = pair
    a.queue.put(b"1", headers={"trace": "t"})
    item = _one(a)
    pipeline.forward(item, b.queue)
    assert (len(a.queue), b.queue.stats().unsynced_items) == (0, 0)
    copy = _one(b)
    assert copy.body == b"1"
    assert copy.headers == {"trace": "t", "once-id": item.id}
    assert pipeline.identity(copy) == pipeline.identity(item) == item.id
    pipeline.forward(copy, a.queue, b"back", headers={})
    again = _one(a)
    assert (again.body, again.headers) == (b"back", {"once-id": item.id})
    again.ack()


def test_parts_of_an_item_are_told_apart(pair: Pair) -> None:
    a, b = pair
    a.queue.put(b"1 2")
    item = _one(a)
    for number, word in enumerate(item.body.split()):
        pipeline.put(item, b.queue, word, part=str(number))
    assert not item.settled
    item.ack()
    parts = b.reserve_many(2)
    assert [pipeline.identity(part) for part in parts] == [f"{item.id}/0", f"{item.id}/1"]
    b.ack_many(parts)


def test_a_failed_put_acks_nothing(pair: Pair) -> None:
    a, b = pair
    a.queue.put(b"1")
    b.queue.seal()
    item = _one(a)
    with pytest.raises(mpqueue.Sealed):
        pipeline.forward(item, b.queue)
    assert not item.settled
    item.nack()


def test_what_was_forwarded_twice_is_done_once(pair: Pair, sqlite: Backend) -> None:
    a, b = pair
    a.queue.put(b"1")
    item = _one(a)
    pipeline.put(item, b.queue)
    item.nack()
    pipeline.forward(_one(a), b.queue)
    connection = sqlite.connect()
    with Inbox(connection, b) as inbox:
        for copy in b.drain():
            with inbox.once(copy) as fresh:
                if fresh:
                    connection.execute("INSERT INTO effects VALUES (1)")
        assert (inbox.fresh, inbox.repeats) == (1, 1)
    assert sqlite.effects() == [1]


def test_each_step_has_its_own_effect_though_they_share_a_table(
    pair: Pair, sqlite: Backend
) -> None:
    a, b = pair
    a.queue.put(b"1")
    connection = sqlite.connect()
    with Inbox(connection, a) as first, Inbox(connection, b) as second:
        item = _one(a)
        with first.once(item) as fresh:
            assert fresh
            connection.execute("INSERT INTO effects VALUES (1)")
            pipeline.put(item, b.queue)
        with second.once(_one(b)) as fresh:
            assert fresh
            connection.execute("INSERT INTO effects VALUES (2)")
    assert sqlite.effects() == [1, 2]


def test_objects_are_forwarded_by_value(pair: Pair, tmp_path: Path) -> None:
    with mpqueue.Queue(tmp_path / "c", codec="json", segment_size=1 << 20) as typed:
        typed.put({"n": 1})
        with typed.consumer() as c:
            item = c.reserve(0)
            assert item is not None
            pipeline.put(item, typed)
            pipeline.forward(item, pair[0].queue, b"n is 1")
            copy = c.reserve(0)
            assert copy is not None
            assert copy.value == {"n": 1}
            copy.ack()
    mpqueue.destroy(tmp_path / "c")
    assert pair[0].take(0).body == b"n is 1"
