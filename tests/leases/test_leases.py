"""Goal: an item whose holder takes too long is ready again, and the late holder can do nothing.

Method: leases that are ended with extend(0), or that are short while a reserve blocks for what they
hold; no test depends on how long anything takes. Orders, clocks and rounding are tried at length by
tests/native/test_lease.c, under a clock of its own.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython


def lapsed(consumer: mpqueue.Consumer, item: mpqueue.Item) -> mpqueue.Item:
    """Ends the lease of the lowest item in hand, and takes the item anew."""
    item.extend(0)
    again = consumer.reserve()
    assert again is not None and again.seq == item.seq
    return again


def test_an_item_comes_again_while_its_holder_still_works(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=0.02)
    q.put(b"job")
    with q.consumer() as c:
        first = c.reserve()
        second = c.reserve()  # blocks until the lease has run out
        assert (first.seq, second.seq, second.attempts) == (1, 1, 2)
        assert first.settled
        assert q.stats().leases_expired >= 1
        c.rewind()


def test_a_late_holder_changes_nothing(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600, durability="none")
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        first, other = c.reserve(), c.reserve()
        again = lapsed(c, first)
        for late in (
            first.ack,
            first.nack,
            lambda: first.extend(5),
            lambda: c.ack(first),
            lambda: c.ack_many([first, other]),
        ):
            with pytest.raises(mpqueue.StaleItem, match=r"seq 1 .*lease ran out"):
                late()
        assert len(q) == 1, "the good one of ack_many stands"
        with pytest.raises(mpqueue.StaleItem), again as late_block:
            again = lapsed(c, late_block)
        with pytest.raises(ZeroDivisionError), again as late_block:
            again = lapsed(c, late_block)
            raise ZeroDivisionError
        assert (q.stats().reserved_items, again.attempts) == (1, 4)
        again.ack()
        assert len(q) == 0
        for late in (again.nack, lambda: again.extend(1)):
            with pytest.raises(mpqueue.StaleItem, match="was acked"):
                late()


def test_a_lease_that_ran_out_is_over_though_nobody_asked(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600)
    q.put(b"job")
    with q.consumer() as c:
        item = c.reserve()
        item.extend(0)
        assert c.wait(), "it is ready again"
        with pytest.raises(mpqueue.StaleItem):
            item.ack()
        assert len(q) == 1
        again = c.reserve(0)
        assert again.attempts == 2
        c.rewind()


def test_extend_gives_more_time(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=0.02)
    q.put_many([b"kept", b"not"])
    with q.consumer() as c:
        kept, _ = c.reserve_many(2)
        kept.extend(3600)
        for attempts in range(2, 6):  # each of them waits for the other lease
            again = c.reserve()
            assert (again.seq, again.attempts) == (2, attempts)
        kept.ack()
        again.extend(10**30)  # as good as for ever
        again.ack()
    assert len(q) == 0


def test_what_is_no_time_is_refused(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600)
    q.put(b"job")
    with q.consumer() as c, c.reserve() as item:
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError, match="seconds"):
                item.extend(wrong)
        for kind in (None, "soon"):
            with pytest.raises(TypeError):
                item.extend(kind)
    assert len(q) == 0


def test_without_the_option_there_are_no_leases(open_queue: OpenQueue) -> None:
    q = open_queue()
    assert q.options.lease_timeout is None
    q.put(b"job")
    with q.consumer() as c, c.reserve() as item:
        item.extend(0)
        assert c.reserve(0.001) is None
    assert (len(q), q.stats().leases_expired) == (0, 0)


def test_the_option_is_set_for_what_is_handed_out_from_then_on(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        free = c.reserve()
        open_queue().set_options(lease_timeout=3600)
        assert q.options.lease_timeout == 3600.0
        bound = c.reserve()
        bound.extend(0)
        free.extend(0)
        again = c.reserve()
        assert again.seq == bound.seq
        free.ack()
        q.set_options(lease_timeout=None)
        never = c.reserve(0)
        assert never is None
        assert c.rewind()[0] == 1
    for wrong in (0, -1, 2e9, float("nan"), "5"):
        with pytest.raises(ValueError, match="lease_timeout"):
            q.set_options(lease_timeout=wrong)
    assert q.options.lease_timeout is None


def test_everything_in_hand_may_lapse_at_once(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600, durability="none", ack_window=4096)
    q.put_many([b"%d" % number for number in range(3000)])
    with q.consumer() as c:
        items = c.reserve_many(3000)
        for item in reversed(items):
            item.extend(0)
        again = []
        while len(again) < 3000:
            again += c.reserve_many(3000)
        assert sorted(item.seq for item in again) == [item.seq for item in items]
        assert {item.attempts for item in again} == {2}
        assert q.stats().leases_expired == 3000
        c.ack_many(again)
    assert len(q) == 0


def test_a_waiting_thread_gets_what_another_one_let_lapse(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600)
    q.put(b"job")
    with q.consumer() as c:
        item = c.reserve()
        got: list[mpqueue.Item] = []
        waiter = threading.Thread(target=lambda: got.append(c.reserve()))
        waiter.start()
        item.extend(0.001)
        waiter.join()
        assert got[0].attempts == 2
        got[0].ack()


def test_the_descriptor_tells_of_a_lease_that_ran_out(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=0.02)
    q.put(b"job")
    with q.consumer() as c:
        first = c.reserve()
        while True:
            again = c.reserve(0)
            if again is not None:
                break
            select.select([c.fileno()], [], [])
        assert (first.attempts, again.attempts) == (1, 2)
        again.ack()


def test_a_sealed_queue_is_not_drained_while_a_lease_runs(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=0.02)
    q.put(b"job")
    q.seal()
    with q.consumer() as c:
        first = c.reserve()
        c.reserve().ack()
        assert first.settled
        with pytest.raises(mpqueue.Sealed):
            c.reserve()


def test_items_of_a_parent_or_of_a_closed_consumer_are_nobodys(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600)
    q.put(b"job")
    c = q.consumer()
    item = c.reserve()
    child = os.fork()
    if child == 0:
        try:
            item.extend(5)
        except mpqueue.Closed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    item.extend(5)
    c.close()
    with pytest.raises(mpqueue.Closed):
        item.extend(5)
    with q.consumer() as after, after.reserve(0) as item:
        assert item.attempts == 2


def test_the_count_outlives_a_restart_of_the_machine(spool: Path, run_python: RunPython) -> None:
    script = """
        import mpqueue, sys
        with mpqueue.Queue(sys.argv[1], lease_timeout=3600) as q:
            q.put(b"job")
            with q.consumer() as c:
                first = c.reserve()
                first.extend(0)
                c.reserve().ack()
    """
    run_python(script, spool)
    script = """
        import os, mpqueue, sys
        os.environ["MPQ_BOOT_ID"] = "another-boot"
        with mpqueue.inspect(sys.argv[1]) as view:
            assert view.counters["expired_leases"] == 1, view.counters
            assert view.options["lease_timeout"] == 3600.0
        with mpqueue.Queue(sys.argv[1]) as q:
            assert q.stats().leases_expired == 1
            assert q.stats().recoveries == 1
    """
    run_python(script, spool)
