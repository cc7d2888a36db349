"""Goal: what cannot fit is refused at once, what does not fit now waits for room and is woken.

Method: one queue for each bound (items, bytes, ring); the put that waits is in another process, and
says on a pipe what it got. Timeouts are lower bounds only: nothing asserts how soon.
"""

from __future__ import annotations

import queue as stdlib_queue
import time
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from rig import Child, advises, until

BOUNDS: dict[str, dict[str, object]] = {
    "capacity": {"capacity": 5},
    "bytes": {"max_bytes": 5 * 1056},
    "ring": {"max_segments": 4},
}
bound = pytest.mark.parametrize("reason", BOUNDS)
BODY = bytes(1000)

# ---- too large


def test_item_larger_than_max_item_is_too_large_even_when_blocking(open_queue: OpenQueue) -> None:
    q = open_queue(max_item=1000, capacity=1)
    q.put(bytes(1000))
    for put in (q.put, q.push, q.put_nowait, q.try_push):
        with pytest.raises(mpqueue.TooLarge) as refused:
            put(bytes(1001))
        assert isinstance(refused.value, ValueError)
        advises(refused.value, Path(q.path), "1001", "max_item", "split|raise")
    assert (len(q), q.stats().items_enqueued, q.stats().full) == (1, 1, 0)


def test_item_larger_than_max_bytes_is_too_large(open_queue: OpenQueue) -> None:
    q = open_queue(max_bytes=4096)
    with pytest.raises(mpqueue.TooLarge) as refused:
        q.put(bytes(4096))
    advises(refused.value, Path(q.path), "max_bytes", "never")
    q.put(bytes(4096 - 48))
    assert len(q) == 1


def test_an_item_larger_than_the_ring_waits_for_acks_only(open_queue: OpenQueue) -> None:
    """A segment of its own holds it once the ring is free; Full does not say that items fill all
    segments when empty ones lie ahead."""
    q = open_queue(segment_size=1 << 16, max_segments=4, durability="none")
    q.put_many([bytes(20_000), bytes(20_000)], atomic=False)  # the next segment is made ahead
    q.put(bytes(100_000))
    big = bytes(2_000_000)
    assert len(big) > q.stats().capacity_bytes
    with pytest.raises(mpqueue.Full) as refused:
        q.put(big, timeout=0)
    assert refused.value.reason == "ring"
    advises(refused.value, Path(q.path), "max_segments is 4", "of its own", "ack", "raise")
    assert "all 4 segments hold items" not in str(refused.value)
    with q.consumer() as c:
        c.ack_many(c.reserve_many(3))
        c.checkpoint()
        seq = q.put(big)
        with c.reserve() as item:
            assert (item.seq, item.body) == (seq, big)


@pytest.mark.parametrize("max_bytes", [1, 63])
def test_a_bound_that_no_item_fits_is_refused_by_name(
    open_queue: OpenQueue, spool: Path, max_bytes: int
) -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least 64"):
        mpqueue.Queue(spool, max_bytes=max_bytes)
    assert not spool.exists()
    q = open_queue(max_bytes=64)
    assert q.put(b"x" * 16) == 1
    with pytest.raises(ValueError, match="max_bytes must be at least 64"):
        q.set_options(max_bytes=max_bytes)


def test_batch_that_never_fits_puts_nothing(open_queue: OpenQueue) -> None:
    q = open_queue(segment_size=1 << 16, capacity=6000)
    for bodies in ([b""] * 4097, [bytes(1000)] * 40):
        with pytest.raises(mpqueue.TooLarge) as refused:
            q.put_many(bodies)
        advises(refused.value, Path(q.path), "atomic=False")
    with pytest.raises(mpqueue.TooLarge), q.batch() as batch:
        for _ in range(40):
            batch.append(bytes(1000))
    assert q.stats().items_enqueued == 0
    assert sum(map(len, q.put_many([b""] * 4097, atomic=False))) == 4097


def test_batch_larger_than_capacity_is_too_large(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=5)
    with pytest.raises(mpqueue.TooLarge):
        q.put_many([b"x"] * 6)
    assert len(q) == 0
    assert q.put_many([b"x"] * 5) == range(1, 6)


def test_item_larger_than_a_segment_gets_its_own(open_queue: OpenQueue) -> None:
    q = open_queue(segment_size=1 << 16)
    body = bytes(range(256)) * 1024
    q.put(b"before")
    q.put(body)
    q.put(b"after")
    with q.consumer() as c:
        assert [item.body for item in c.drain()] == [b"before", body, b"after"]


def test_empty_item_is_an_item(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=3)
    assert [q.put(b""), q.put(bytearray()), q.put(memoryview(b""))] == [1, 2, 3]
    with pytest.raises(mpqueue.Full):
        q.put_nowait(b"")
    with q.consumer() as c:
        items = c.reserve_many(3)
        assert [item.body for item in items] == [b""] * 3
        items[0].nack()
        c.rewind()
        assert [item.body for item in c.drain()] == [b""] * 3
    assert (len(q), q.stats().items_acked) == (0, 3)


@pytest.mark.parametrize("item", ["text", None, 7, [b"x"], object()])
def test_what_is_not_bytes_is_a_type_error(open_queue: OpenQueue, item: object) -> None:
    q = open_queue()
    with pytest.raises(TypeError):
        q.put(item)
    with pytest.raises(TypeError):
        q.put_many([b"x", item])
    assert q.stats().items_enqueued == 0


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_timeout_out_of_range_is_a_value_error(open_queue: OpenQueue, timeout: float) -> None:
    q = open_queue()
    with pytest.raises(ValueError, match="timeout"):
        q.put(b"x", timeout=timeout)
    with q.consumer() as c, pytest.raises(ValueError, match="timeout"):
        c.reserve(timeout)
    assert q.stats().items_enqueued == 0


# ---- full


def _fill(q: mpqueue.Queue) -> int:
    count = 0
    while True:
        try:
            q.put_nowait(BODY)
        except mpqueue.Full:
            return count
        count += 1


@pytest.fixture(params=list(BOUNDS))
def reason(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def full(open_queue: OpenQueue, reason: str) -> mpqueue.Queue:
    """A queue filled to one of its bounds."""
    q = open_queue(segment_size=1 << 16, durability="none", **BOUNDS[reason])
    count = _fill(q)
    assert count == 5 if reason != "ring" else count > 100
    return q


def test_full_says_why_after_its_timeout_and_puts_nothing(full: mpqueue.Queue, reason: str) -> None:
    depth, next_seq = len(full), full.stats().next_seq
    began = time.monotonic()
    with pytest.raises(mpqueue.Full) as refused:
        full.put(BODY, timeout=0.05)
    assert time.monotonic() - began >= 0.05
    assert isinstance(refused.value, stdlib_queue.Full)
    assert refused.value.reason == reason
    advises(refused.value, Path(full.path), "consume and ack", "raise")
    for put in (
        lambda: full.put(BODY, block=False),
        lambda: full.put(BODY, timeout=0),
        lambda: full.put_many([BODY] * 2, timeout=0),
        lambda: full.put_many([BODY] * 2, atomic=False, block=False),
    ):
        with pytest.raises(mpqueue.Full) as refused:
            put()
        assert (refused.value.reason, refused.value.accepted) == (reason, 0)
    assert full.put(BODY, timeout=0, on_full="drop") is None
    now = full.stats()
    assert (len(full), now.next_seq, now.items_dropped) == (depth, next_seq, 1)
    assert now.full >= 6


def _ack_room(q: mpqueue.Queue, c: mpqueue.Consumer, reason: str) -> int:
    """Acks until there is room: one item, or for the ring a whole segment; says how many."""
    enough = 1 if reason != "ring" else 70
    c.ack_many(c.reserve_many(enough))
    if reason == "ring":
        c.checkpoint()
    return enough


def test_put_works_after_ack(full: mpqueue.Queue, reason: str) -> None:
    depth = len(full)
    with full.consumer() as c:
        acked = _ack_room(full, c, reason)
        full.put_nowait(BODY)
    assert len(full) == depth - acked + 1


def test_ack_wakes_a_put_in_another_process(full: mpqueue.Queue, reason: str) -> None:
    depth = len(full)
    script = """
        q = mpqueue.Queue(args[0])
        say("open")
        say(q.put(b"late" * 250))
        q.close()
    """
    with Child(script, full.path) as producer:
        assert producer.hear() == "open"
        before = full.stats().waits
        until(lambda: full.stats().waits > before)  # it sleeps for room
        with full.consumer() as c:
            acked = _ack_room(full, c, reason)
            assert int(producer.hear()) == full.stats().next_seq - 1
            producer.ends()
    assert len(full) == depth - acked + 1


def test_raising_the_bound_wakes_a_put_in_another_process(full: mpqueue.Queue, reason: str) -> None:
    script = "q = mpqueue.Queue(args[0]); say('open'); say(q.put(b'x' * 1000)); q.close()"
    depth = len(full)
    raised = {"capacity": 6, "bytes": 6 * 1056, "ring": 5}[reason]
    with Child(script, full.path) as producer:
        assert producer.hear() == "open"
        before = full.stats().waits
        until(lambda: full.stats().waits > before)
        name = {"bytes": "max_bytes", "ring": "max_segments"}.get(reason, reason)
        full.set_options(**{name: raised})
        assert int(producer.hear()) == depth + 1
        producer.ends()
    assert len(full) == depth + 1


def test_capacity_is_exact_under_four_producers(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=50, durability="none")
    script = """
        q = mpqueue.Queue(args[0])
        say("open")
        listen()
        accepted = 0
        for _ in range(200):
            try:
                q.put_nowait(b"x")
            except mpqueue.Full as error:
                assert error.reason == "capacity"
            else:
                accepted += 1
        say(accepted)
        q.close()
    """
    children = [Child(script, q.path) for _ in range(4)]
    try:
        for child in children:
            assert child.hear() == "open"
        for child in children:
            child.tell()
        assert sum(int(child.hear()) for child in children) == 50
        for child in children:
            child.ends()
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert len(q) == 50


def test_large_items_fill_the_ring_and_again_after_a_drain(tmp_path: Path) -> None:
    """An item larger than a segment takes one place of the ring, not a small one beside it too."""
    path = tmp_path / "spool"
    with (
        mpqueue.Queue(path, segment_size=1 << 16, max_segments=8, durability="none") as q,
        q.consumer() as c,
    ):
        fitted = []
        for _ in range(3):
            count = 0
            with pytest.raises(mpqueue.Full):
                while True:
                    q.put(bytes(70_000), block=False)
                    count += 1
            fitted.append(count)
            assert len(list(c.drain())) == count
            c.checkpoint()
        assert min(fitted) >= 6
