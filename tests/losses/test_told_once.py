"""Goal: each loss is told once: raised, handed to on_loss, or in the log when nobody asks again.

Method: bodies are damaged in the file under an open queue. Callbacks take themselves away, close
what calls them or raise; consumers close before the call that would have told.
"""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue


@pytest.fixture
def q(tmp_path: Path) -> Iterator[mpqueue.Queue]:
    with mpqueue.Queue(
        tmp_path / "spool", segment_size=1 << 20, durability="none", max_attempts=1
    ) as queue:
        yield queue


def damage(queue: mpqueue.Queue, *bodies: bytes) -> None:
    """Flips a bit of each body, where it lies in the file."""
    (path,) = Path(queue.path).glob("segment-*")
    data = path.read_bytes()
    with path.open("r+b") as file:
        for body in bodies:
            file.seek(data.index(body))
            file.write(bytes([body[0] ^ 4]))


def warnings_of_loss(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "damage met" in r.getMessage()]


def keep(q: mpqueue.Queue) -> mpqueue.Consumer[bytes]:
    """A consumer whose next call would raise a Corrupt of one item."""
    c = q.consumer()
    q.put_many([b"whole one", b"damaged item", b"whole two"])
    damage(q, b"damaged item")
    items = c.reserve_many(3)
    assert [item.body for item in items] == [b"whole one"]
    c.ack_many(items)
    return c


# ---- callbacks


def test_a_callback_is_alive_while_it_runs(q: mpqueue.Queue) -> None:
    bodies = [b"damaged %02d" % n for n in range(20)]
    q.put_many(bodies)
    damage(q, *bodies)
    c = q.consumer()
    alive: list[bool] = []

    def told(reference: Callable[[], object], error: mpqueue.Corrupt) -> None:
        c.on_loss = None
        gc.collect()
        alive.append(reference() is not None)
        arm()

    def arm() -> None:
        def callback(error: mpqueue.Corrupt) -> None:
            told(reference, error)

        cached = functools.lru_cache(maxsize=4)(callback)  # does not hold itself in a call
        reference = weakref.ref(cached)
        c.on_loss = cached

    arm()
    assert c.reserve(0) is None
    assert alive == [True] * 20
    c.close()


def test_a_callback_may_close_the_consumer(q: mpqueue.Queue) -> None:
    q.put_many([b"damaged item", b"whole"])
    damage(q, b"damaged item")
    c = q.consumer()
    c.on_loss = lambda _: c.close()
    with pytest.raises(mpqueue.Closed):
        c.reserve(0)
    with q.consumer() as c:
        item = c.take(0)
        assert item is not None and item.body == b"whole"


# ---- what is kept


@pytest.mark.parametrize("closes", ["consumer", "queue"])
def test_a_close_hands_a_kept_loss_to_on_loss(q: mpqueue.Queue, closes: str) -> None:
    told: list[mpqueue.Corrupt] = []
    c = keep(q)
    c.on_loss = told.append
    for _ in range(2):
        (c if closes == "consumer" else q).close()
    assert [error.lost_items for error in told] == [1]
    assert c.closed


def test_a_close_logs_a_kept_loss_and_counts_it(
    q: mpqueue.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mpqueue"):
        keep(q).close()
    assert len(warnings_of_loss(caplog)) == 1
    assert q.stats().lost_items == 1


@pytest.mark.parametrize("closes", ["consumer", "queue"])
def test_a_callback_that_raises_does_not_keep_it_open(q: mpqueue.Queue, closes: str) -> None:
    def raises(_: mpqueue.Corrupt) -> None:
        raise LookupError

    c = keep(q)
    c.on_loss = raises
    with pytest.raises(LookupError):
        (c if closes == "consumer" else q).close()
    assert c.closed
    (c if closes == "consumer" else q).close()


def test_a_callback_of_a_close_may_close_it(q: mpqueue.Queue) -> None:
    c = keep(q)
    c.on_loss = lambda _: c.close()
    c.close()
    assert c.closed


def test_a_kept_loss_is_raised_once(q: mpqueue.Queue) -> None:
    c = keep(q)
    with pytest.raises(mpqueue.Corrupt) as told:
        c.reserve(0)
    assert told.value.lost_items == 1
    item = c.take(0)
    assert item is not None and item.body == b"whole two"
    c.close()


# ---- dead letters


def test_an_item_damaged_in_hand_is_told_once_by_dead(q: mpqueue.Queue) -> None:
    q.put(b"damaged item")
    c = q.consumer()
    item = c.reserve(0)
    assert item is not None
    damage(q, b"damaged item")
    with pytest.raises(mpqueue.Corrupt):
        item.dead()
    assert c.reserve(0) is None
    c.close()


def test_items_damaged_before_their_move_are_all_told(q: mpqueue.Queue) -> None:
    """Moved in one go, by whatever asks next: one telling has room for all."""
    bodies = [b"damaged %02d" % n for n in range(5)]
    q.put_many(bodies)
    told: list[mpqueue.Corrupt] = []
    c = q.consumer(on_loss=told.append)
    items = c.reserve_many(5)
    damage(q, *bodies)
    for item in items:
        item.nack()
    assert c.reserve(0) is None
    c.close()
    assert sum(error.lost_items for error in told) == 5 == q.stats().lost_items
    assert all(f"{error.lost_items} item(s)" in str(error) for error in told)
