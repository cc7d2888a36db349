"""Goal: the consumer's side of the Python layer does what its docstrings say.

Method: one consumer over a small queue; damage is made by flipping bytes in the segment file, death
by processes of their own, waiting ends by events in threads.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import _native


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    return open_queue(durability="none")


@pytest.fixture
def c(q: mpqueue.Queue) -> Iterator[mpqueue.Consumer]:
    with q.consumer() as consumer:
        yield consumer


def _put(q: mpqueue.Queue, count: int) -> range:
    return q.put_many(b"%d" % number for number in range(count))


def _bodies(items: list[mpqueue.Item]) -> list[bytes]:
    return [item.body for item in items]


# ---- reserving


def test_reserve_tells_empty_from_an_empty_payload(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    assert c.reserve(timeout=0) is None
    assert c.reserve(0.001) is None
    assert c.peek() is None
    assert c.wait(0) is False
    assert c.skip() is None
    assert c.take(0) is None
    assert c.reserve_many(3, timeout=0) == []
    q.put(b"")
    assert c.wait() is True
    item = c.reserve()
    assert item is not None
    assert item.body == b""
    item.ack()


def test_items_come_in_order_with_their_facts(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    before = time.time()
    seqs = _put(q, 3)
    items = [c.reserve() for _ in range(3)]
    assert [item.seq for item in items] == list(seqs)
    first = items[0]
    uuid, epoch, seq = first.id.split(":")
    assert (uuid, int(seq)) == (q.uuid, first.seq)
    assert int(epoch) == q.stats().epoch
    assert before - 1 <= first.enqueued_at <= time.time() + 1
    assert (first.attempts, first.headers, first.settled) == (1, {}, False)
    assert repr(first) == f"<mpqueue.Item seq={first.seq} attempts=1 bytes=1>"
    c.ack_many(items)
    assert first.settled


def test_reserve_waits_for_a_put(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    bodies: list[bytes] = []

    def consume() -> None:
        with c.reserve() as item:
            bodies.append(item.body)

    consumer = threading.Thread(target=consume)
    consumer.start()
    q.put(b"late")
    consumer.join()
    assert bodies == [b"late"]


def test_reserve_many_obeys_its_bounds(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put_many([bytes(10)] * 700)
    for bounds, expected in (
        ({"n": 600}, 600),
        ({"n": 10, "max_bytes": 35}, 3),
        ({"n": 10, "max_bytes": 1}, 1),
    ):
        items = c.reserve_many(**bounds)
        assert len(items) == expected
        c.rewind()
    items = c.reserve_many(1000, linger=0.01)
    assert len(items) == 700
    c.ack_many(items)
    for wrong in ((0, None), (-1, None), (1, 0)):
        with pytest.raises(ValueError, match="reserve_many"):
            c.reserve_many(wrong[0], max_bytes=wrong[1])
    with pytest.raises(ValueError, match="timeout"):
        c.reserve_many(1, linger=-1)
    with pytest.raises(TypeError):
        c.reserve_many("many")


def test_reserve_many_lingers_for_more(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    got: list[bytes] = []

    def consume() -> None:
        items = c.reserve_many(2, linger=3600)
        got.extend(_bodies(items))
        c.ack_many(items)

    consumer = threading.Thread(target=consume)
    consumer.start()
    q.put(b"first")
    q.put(b"second")
    consumer.join()
    assert got == [b"first", b"second"]


def test_peek_and_wait_take_nothing(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put(b"x")
    for _ in range(3):
        seen = c.peek()
        assert seen is not None
        assert (seen.body, seen.settled) == (b"x", True)
        assert c.wait(0)
    with c.reserve() as item:
        assert (item.seq, item.attempts) == (seen.seq, 1)


# ---- settling


def test_acks_in_any_order_and_repeats(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    _put(q, 5)
    items = c.reserve_many(5)
    for at in (2, 4, 1, 3, 0):
        items[at].ack()
        c.ack(items[at])
        items[at].ack(durable=True)
    assert len(q) == 0
    c.ack_many([])


def test_nack_returns_the_item_to_its_place(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    _put(q, 3)
    first, second = c.reserve_many(2)
    first.nack()
    again = c.reserve()
    assert (again.body, again.attempts, again.id) == (b"0", 2, first.id)
    with pytest.raises(mpqueue.StaleItem):
        first.ack()
    with pytest.raises(mpqueue.StaleItem):
        c.ack_many([second, first])
    assert len(q) == 2, "the good one of a batch stands"
    c.nack(again)
    assert c.take(0).body == b"0"
    assert c.take(0).body == b"2"
    assert len(q) == 0


def test_context_manager_acks_or_nacks(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put(b"x")
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error), c.reserve():
            raise error
        assert q.qsize() == 1
    with c.reserve() as item:
        assert item.attempts == 3
    assert len(q) == 0
    q.put(b"y")
    with c.reserve() as item:
        item.nack()
    assert q.qsize() == 1
    with c.reserve() as item:
        item.ack()
        item.ack()


def test_ack_up_to_is_exclusive_and_bounded(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    seqs = _put(q, 5)
    items = c.reserve_many(3)
    with pytest.raises(mpqueue.OutOfRange):
        c.ack_up_to(seqs[4])
    assert c.ack_up_to(seqs[2]) == 2
    assert len(q) == 3
    assert [item.settled for item in items] == [True, True, False]
    items[0].ack()
    items[2].nack()
    del items
    assert c.ack_up_to(seqs[0]) == 0


def test_items_of_another_consumer_are_stale(q: mpqueue.Queue) -> None:
    q.put(b"x")
    with q.consumer() as first:
        item = first.reserve()
    with pytest.raises(mpqueue.Closed):
        item.ack()
    with q.consumer() as second:
        with pytest.raises(mpqueue.StaleItem):
            second.ack(item)
        with pytest.raises(mpqueue.StaleItem):
            second.ack_many([item])
        with pytest.raises(TypeError):
            second.ack(b"not an item")
        with second.reserve() as again:
            assert again.id == item.id


def test_rewind_skip_and_take(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    seqs = _put(q, 4)
    items = c.reserve_many(3)
    assert c.rewind() == (3, 3 * 64)
    with pytest.raises(mpqueue.StaleItem):
        items[0].ack()
    assert c.skip() == seqs[0]
    taken = c.take()
    assert (taken.seq, taken.settled) == (seqs[1], True)
    assert q.stats().items_skipped == 1
    assert len(q) == 2


def test_collected_item_is_given_back_with_a_warning(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests left behind is theirs
    q.put(b"x")
    with pytest.warns(ResourceWarning, match="without ack or nack"):
        c.reserve()
    assert q.qsize() == 1
    cycle: list[object] = [c.reserve()]
    cycle.append(cycle)
    del cycle
    with pytest.warns(ResourceWarning, match=str(q.path)):
        gc.collect()
    assert q.qsize() == 1
    item = c.reserve()
    c.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del item
        gc.collect()


# ---- loops


def test_iteration_acks_when_the_next_is_asked_for(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    _put(q, 3)
    depths = []
    for item in c:
        depths.append(len(q))
        if item.body == b"1":
            item.nack()
            item = c.reserve()
            item.ack()
        if item.body == b"2":
            q.seal()
    assert depths == [3, 2, 1]
    assert len(q) == 0


@pytest.mark.parametrize("leave", ["break", "raise", "close"])
def test_leaving_a_loop_gives_the_item_back(
    q: mpqueue.Queue, c: mpqueue.Consumer, leave: str
) -> None:
    _put(q, 2)
    if leave == "close":
        items = iter(c)
        next(items)
        items.close()
    else:
        try:
            for _ in c.follow():
                if leave == "break":
                    break
                raise KeyError
        except KeyError:
            pass
    with c.reserve() as item:
        assert (item.body, item.attempts) == (b"0", 2)


def test_drain_stops_when_nothing_is_ready(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    _put(q, 5)
    assert [item.body for item in c.drain()] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(q) == 0
    assert list(c.drain()) == []
    _put(q, 2)
    for item in c.drain(ack="on_read"):
        assert item.settled
        break
    assert len(q) == 1
    with pytest.raises(ValueError, match="ack"):
        c.follow(ack="never")


# ---- views


def test_views_outlive_ack_consumer_queue_and_files(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(segment_size=65536)
    payload = bytes(range(256)) * 64
    q.put_many([payload, b"small"])
    with q.consumer(views=True) as c:
        assert c.views
        with c.reserve() as item:
            view = item.body
        with c.reserve() as item:
            assert bytes(item.body) == b"small"
        for _ in range(8):
            for _ in range(3):
                q.put(bytes(16000))
            for item in c.drain():
                assert bytes(item.body) == bytes(16000)
            c.checkpoint()
    del c, item
    q.close()
    mpqueue.destroy(spool)
    assert type(view) is memoryview
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    assert bytes(view) == payload


# ---- the role


def test_one_consumer_at_a_time(open_queue: OpenQueue) -> None:
    q, other = open_queue(), open_queue()
    with q.consumer() as c:
        for handle in (q, other):
            with pytest.raises(mpqueue.ConsumerBusy) as busy:
                handle.consumer()
            assert busy.value.pid in (os.getpid(), -1)
        with pytest.raises(mpqueue.ConsumerBusy):
            other.consumer(wait=0.001)
        assert repr(c) == f"<mpqueue.Consumer of {q.path!r}>"
    assert c.closed
    with other.consumer():
        pass


def test_standby_takes_over_when_the_holder_closes(open_queue: OpenQueue) -> None:
    q, other = open_queue(), open_queue()
    q.put(b"x")
    holder = q.consumer()
    held = holder.reserve()
    bodies: list[bytes] = []

    def stand_by() -> None:
        with other.consumer(wait=3600) as c, c.reserve() as item:
            bodies.append(item.body)

    standby = threading.Thread(target=stand_by)
    standby.start()
    holder.close()
    standby.join()
    assert bodies == [b"x"]
    assert held.attempts == 1


def test_killed_consumer_loses_nothing(run_python: RunPython, spool: Path) -> None:
    run_python(
        """
        import os, signal, sys
        import mpqueue
        q = mpqueue.Queue(sys.argv[1], segment_size=65536)
        q.put_many([b"acked", b"in hand", b"waiting"])
        pid = os.fork()
        if pid == 0:
            c = q.consumer()
            c.reserve().ack()
            item = c.reserve()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        with q.consumer(wait=60) as c:
            bodies = [(item.body, item.attempts) for item in c.drain()]
        assert bodies == [(b"in hand", 2), (b"waiting", 1)], bodies
        """,
        spool,
    )


def test_closed_consumer_raises_closed(q: mpqueue.Queue) -> None:
    c = q.consumer()
    q.put(b"x")
    item = c.reserve()
    c.close()
    c.close()
    for call in (
        c.reserve,
        c.peek,
        c.skip,
        c.rewind,
        c.checkpoint,
        item.ack,
        item.nack,
        lambda: c.reserve_many(1),
        lambda: c.ack(item),
        lambda: next(iter(c)),
    ):
        with pytest.raises(mpqueue.Closed):
            call()


@pytest.mark.parametrize("what", ["consumer", "queue"])
def test_close_ends_a_blocked_reserve(open_queue: OpenQueue, what: str) -> None:
    q = open_queue()
    c = q.consumer()
    outcome: list[BaseException] = []

    def consume() -> None:
        try:
            c.reserve()
        except mpqueue.Closed as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    (c if what == "consumer" else q).close()
    consumer.join()
    assert len(outcome) == 1


def test_sealed_ends_waits_and_loops(open_queue: OpenQueue) -> None:
    q, other = open_queue(), open_queue()
    with q.consumer() as c:
        outcome: list[BaseException] = []

        def consume() -> None:
            try:
                c.reserve()
            except mpqueue.Sealed as error:
                outcome.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        other.seal()
        consumer.join()
        assert len(outcome) == 1
        assert list(c) == []
        with pytest.raises(mpqueue.Sealed):
            c.reserve_many(2)
        other.seal(undo=True)
        other.put(b"x")
        other.seal()
        item = c.reserve()
        assert c.reserve(0) is None, "an item in hand may come back"
        item.ack()
        with pytest.raises(mpqueue.Sealed):
            c.take()


def test_consumer_and_item_refuse_to_pickle(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put(b"x")
    with c.reserve() as item:
        for thing, hint in ((c, "pickle the Queue"), (item, "send its body")):
            with pytest.raises(TypeError, match=f"(?i){hint}"):
                pickle.dumps(thing)


def test_items_can_be_of_a_subclass(q: mpqueue.Queue) -> None:
    class Upper(mpqueue.Item):
        __slots__ = ()

        @property
        def value(self) -> str:
            return self.body.decode().upper()

    q.put_many([b"a", b"b"])
    c = _native.Consumer(q, item_type=Upper)
    with c.reserve() as item:
        assert (type(item), item.value) == (Upper, "A")
    for other in (int, object):
        with pytest.raises(TypeError):
            _native.Consumer(q, item_type=other)
    assert c.take().value == "B"
    c.close()


def test_items_are_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        mpqueue.Item()


# ---- damage


def _flip(spool: Path, payload: bytes) -> None:
    """Flips a bit in the one place where the payload lies."""
    for path in spool.glob("segment-*"):
        data = path.read_bytes()
        at = data.find(payload)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([payload[0] ^ 4]))
            return
    raise AssertionError("payload not found")


def test_damage_is_raised_once_and_passed(
    open_queue: OpenQueue, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    q = open_queue()
    q.put_many([b"whole one", b"damaged item", b"whole two"])
    _flip(spool, b"damaged item")
    with q.consumer() as c:
        with c.reserve() as item:
            assert item.body == b"whole one"
        with pytest.raises(mpqueue.Corrupt) as corrupt:
            c.reserve()
        assert corrupt.value.lost_items == 1
        assert corrupt.value.lost_bytes > 0
        assert corrupt.value.segment > 0 or corrupt.value.offset > 0
        with c.reserve() as item:
            assert item.body == b"whole two"
        assert c.reserve(0) is None
    now = q.stats()
    assert (now.lost_items, now.loss_events, now.depth) == (1, 1, 0)
    assert any("damage" in record.message for record in caplog.records)


def test_damage_in_the_middle_of_reserve_many_comes_with_the_next_call(
    open_queue: OpenQueue, spool: Path
) -> None:
    q = open_queue()
    q.put_many([b"whole one", b"damaged item", b"whole two"])
    _flip(spool, b"damaged item")
    with q.consumer() as c:
        got: list[bytes] = []
        losses = 0
        while len(q):
            try:
                items = c.reserve_many(3, timeout=60)
            except mpqueue.Corrupt:
                losses += 1
                continue
            got += _bodies(items)
            c.ack_many(items)
    assert (got, losses) == ([b"whole one", b"whole two"], 1)


def test_on_loss_is_called_instead(open_queue: OpenQueue, spool: Path) -> None:
    losses: list[mpqueue.Corrupt] = []
    q = open_queue()
    q.put_many([b"damaged item", b"whole"])
    _flip(spool, b"damaged item")
    with q.consumer(on_loss=losses.append) as c:
        assert c.on_loss is not None
        assert [item.body for item in c.drain()] == [b"whole"]
    assert [loss.lost_items for loss in losses] == [1]


# ---- signals


class Interrupt(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize(
    "call",
    [
        lambda q, c: c.reserve(),
        lambda q, c: c.reserve(timeout=3600),
        lambda q, c: c.reserve_many(5),
        lambda q, c: c.take(),
        lambda q, c: c.wait(),
        lambda q, c: next(iter(c)),
        lambda q, c: mpqueue.Queue(q.path).consumer(wait=3600),
        lambda q, c: (q.put(b"x"), q.join()),
    ],
    ids=["reserve", "timeout", "reserve_many", "take", "wait", "iterate", "standby", "join"],
)
def test_signal_handler_ends_every_wait(
    q: mpqueue.Queue,
    c: mpqueue.Consumer,
    call: Callable[[mpqueue.Queue, mpqueue.Consumer], object],
) -> None:
    def handler(*_: object) -> None:
        raise Interrupt

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Interrupt):
            call(q, c)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_a_linger_ends_with_the_timeout(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put(b"only")
    (item,) = c.reserve_many(9, timeout=0, linger=3600)
    item.nack()
    (item,) = c.reserve_many(9, timeout=0.01, linger=3600)
    item.ack()
    with pytest.raises(TypeError, match="linger is a number of seconds"):
        c.reserve_many(9, linger=None)  # type: ignore[arg-type]


def test_a_seal_before_ends_a_linger_at_once(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    """Nothing more can come: what there is is returned, and the next call raises Sealed.

    An item in other hands is no reason to wait: lingering is for what is new.
    """
    q.put_many([b"held", b"a", b"b"])
    held = c.reserve()
    q.seal()
    items = c.reserve_many(9, linger=3600)
    assert [item.body for item in items] == [b"a", b"b"]
    c.ack_many([held, *items])
    with pytest.raises(mpqueue.Sealed):
        c.reserve_many(9, linger=3600)


def test_a_seal_meanwhile_ends_a_linger(
    open_queue: OpenQueue, q: mpqueue.Queue, c: mpqueue.Consumer
) -> None:
    other = open_queue()
    q.put(b"a")
    waits = q.stats().waits

    def seal() -> None:
        while other.stats().waits < waits + 2:
            pass
        other.seal()

    sealer = threading.Thread(target=seal)
    sealer.start()
    items = c.reserve_many(9, linger=3600)
    sealer.join()
    assert [item.body for item in items] == [b"a"]
    c.ack_many(items)


def test_the_byte_bound_holds_for_empty_items_too(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    """An item that fills the bound, or passes it as the first may, was followed by empty ones."""
    for body, bound in ((b"12345", 5), (b"12345", 3)):
        q.put_many([body, b"", b""])
        items = c.reserve_many(9, max_bytes=bound)
        assert [item.body for item in items] == [body]
        rest = c.reserve_many(9, max_bytes=bound)
        assert [item.body for item in rest] == [b"", b""]
        c.ack_many(items + rest)


def test_a_peeked_item_tells_its_hand_outs_so_far(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    q.put(b"x")
    for attempts in range(3):
        assert c.peek().attempts == attempts
        item = c.reserve()
        assert item.attempts == attempts + 1
        item.nack()


def test_closing_the_consumer_inside_its_own_item_is_told(q: mpqueue.Queue) -> None:
    """The item was given back, so the block must not end as if it had been acked."""
    q.put_many([b"a", b"b"])
    c = q.consumer()
    with pytest.raises(mpqueue.Closed, match="ready again"), c.reserve() as item:
        c.close()
    assert not item.settled
    c = q.consumer()
    with pytest.raises(KeyError), c.reserve() as item:  # the block's own error matters more
        assert (item.body, item.attempts) == (b"a", 2)
        c.close()
        raise KeyError
    c = q.consumer()
    with c.reserve() as item:  # acked before: nothing to tell
        item.ack()
        c.close()
    with q.consumer() as c, c.reserve() as item:
        assert item.body == b"b"


def test_interrupted_linger_gives_its_items_back(q: mpqueue.Queue, c: mpqueue.Consumer) -> None:
    def handler(*_: object) -> None:
        if q.stats().reserved_items == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupt

    _put(q, 2)
    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        with pytest.raises(Interrupt):
            c.reserve_many(3, linger=3600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (q.qsize(), q.stats().reserved_items) == (2, 0)


def test_termination_signal_leaves_the_item_in_the_queue(
    run_python: RunPython, spool: Path
) -> None:
    run_python(
        """
        import os, signal, sys
        import mpqueue
        def stop(*_):
            sys.exit(0)
        q = mpqueue.Queue(sys.argv[1], segment_size=65536)
        q.put(b"x")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, stop)
            with q.consumer() as c:
                for item in c:
                    os.write(write, b"1")
                    c.reserve()
        assert os.read(read, 1) == b"1"
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == 0
        with q.consumer() as c, c.reserve() as item:
            assert (item.body, item.attempts) == (b"x", 2)
        q.close()
        """,
        spool,
    )


def test_an_empty_item_has_an_empty_view(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"", b"x", b""])
    q.put(b"", headers={"k": "v"})
    with q.consumer(views=True) as c:
        items = [c.reserve(), *c.reserve_many(2), c.take()]
        assert [bytes(item.body) for item in items] == [b"", b"x", b"", b""]
        assert all(isinstance(item.body, memoryview) and item.body.readonly for item in items)
        assert items[3].headers == {"k": "v"}
        c.ack_many(items[:3])


def test_ack_up_to_leaves_what_it_did_not_find_in_hand(open_queue: OpenQueue) -> None:
    """An item that was given back before, and is handed out anew below that seq, is not acked."""
    q = open_queue()
    q.put_many([b"a", b"b", b"c"])
    with q.consumer() as c:
        first, *others = c.reserve_many(3)
        first.nack()
        assert c.ack_up_to(4) == 2
        assert [item.settled for item in others] == [True, True]
        again = c.reserve(0)
        assert (again.body, again.settled) == (b"a", False)
        with pytest.warns(ResourceWarning):
            del again
        with c.reserve(0) as item:
            assert (item.body, item.attempts) == (b"a", 3)
        assert len(q) == q.stats().reserved_items == 0


def test_settled_knows_a_rewind(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"a")
    with q.consumer() as c:
        item = c.reserve()
        assert not item.settled
        c.rewind()
        assert item.settled
        c.reserve().ack()


def test_an_ack_of_an_older_hand_out_is_stale_also_when_the_item_is_gone(
    open_queue: OpenQueue,
) -> None:
    q = open_queue()
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        a, b = c.reserve_many(2)
        c.rewind()
        assert c.skip() == 1
        with pytest.raises(mpqueue.StaleItem):
            a.ack()
        again = c.reserve()
        again.ack()
        again.ack()  # a repeat is harmless
        with pytest.raises(mpqueue.StaleItem):
            b.ack()
        now = q.stats()
        assert (now.items_acked, now.items_skipped, now.depth) == (1, 1, 0)
