"""Goal: under `interval` exposure stays bounded in items and in time. Method: the gauges."""

from __future__ import annotations

from pathlib import Path

import mpqueue


def test_exposure_never_passes_interval_items_after_a_put(spool: Path) -> None:
    with mpqueue.Queue(spool, durability="interval", interval_items=10, interval=3600) as queue:
        exposed = []
        for number in range(100):
            queue.put(b"%d" % number)
            exposed.append(queue.stats().unsynced_items)
    assert max(exposed) <= 10
    assert 0 in exposed


def test_a_waiting_consumer_flushes_for_producers_that_went_silent(spool: Path) -> None:
    with (
        mpqueue.Queue(spool, durability="interval", interval_items=1000, interval=0.05) as queue,
        queue.consumer() as consumer,
    ):
        queue.put(b"the last for a long time")
        held = consumer.reserve()
        assert held is not None
        while queue.stats().unsynced_items:  # ends by a flush of the consumer, or by the watchdog
            assert consumer.reserve(timeout=0.05) is None
        held.ack()


def test_closing_leaves_nothing_exposed(spool: Path) -> None:
    queue = mpqueue.Queue(spool, durability="interval", interval_items=1000, interval=3600)
    queue.flush()
    queue.put(b"published only")
    assert queue.stats().unsynced_items == 1
    queue.close()
    with mpqueue.Queue(spool) as again:
        assert again.stats().unsynced_items == 0
