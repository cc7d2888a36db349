"""Goal: in steady use no file is made and no page mapped anew; what was deleted is not pinned.

Method: the segment files of a small ring, and the mappings of this process as the kernel lists
them in /proc/self/maps.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue

SEGMENT = 1 << 16
BODY = bytes(1000)


def _mapped(path: str | bytes) -> dict[str, bool]:
    """Address ranges of mapped segments of this queue, and whether the file was deleted."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"{os.fsdecode(path)}/segment-" in line or f"{os.fsdecode(path)}/preparing-" in line:
            found[line.split()[0]] = line.endswith("(deleted)")
    return found


def _pass_through(q: mpqueue.Queue, c: mpqueue.Consumer, segments: int) -> None:
    """As many items as fill `segments` segments go in and out, some at a time."""
    for number in range(segments * SEGMENT // 1056):
        q.put(BODY)
        if number % 40 == 39:
            c.ack_many(c.reserve_many(40))
            c.checkpoint()


def test_a_ring_in_steady_use_keeps_its_files_and_mappings(open_queue: OpenQueue) -> None:
    q = open_queue(segment_size=SEGMENT, max_segments=4, keep_segments=4)
    with q.consumer() as c:
        _pass_through(q, c, 12)
        made, mapped = q.stats().segments_made, _mapped(q.path)
        _pass_through(q, c, 20)
        stats = q.stats()
        assert stats.segments_made == made <= 4
        assert stats.segments_reused >= 20
        assert stats.segments_removed == 0
        # The mappings that were there take all generations; not one more is needed.
        assert set(_mapped(q.path)) <= set(mapped)
        assert 1 < len(mapped) <= 4


def test_a_full_ring_gives_its_freed_file_to_the_next_put(open_queue: OpenQueue) -> None:
    """The bound on files counts the freed one once: it is reused, not deleted and made again."""
    q = open_queue(segment_size=SEGMENT, max_segments=4, keep_segments=2)
    with q.consumer() as c:
        for _ in range(12):
            with pytest.raises(mpqueue.Full) as full:
                while True:
                    q.put_nowait(BODY)
            assert full.value.reason == "ring"
            c.ack_many(c.reserve_many(63))  # the oldest segment, and a bit
            c.checkpoint()
        stats = q.stats()
        assert stats.segments_made <= 4
        assert stats.segments_reused >= 8
        assert len(list(Path(os.fsdecode(q.path)).glob("segment-*"))) <= 4


def test_deleted_files_are_not_pinned_by_mappings(open_queue: OpenQueue) -> None:
    q = open_queue(segment_size=SEGMENT, max_segments=64, keep_segments=0)
    with q.consumer() as c:
        for _ in range(10 * SEGMENT // 1056):
            q.put(BODY)
        assert len(_mapped(q.path)) >= 5
        c.ack_many(c.reserve_many(10_000))
        c.checkpoint()
        assert q.stats().segments_removed >= 8
        assert not [place for place, deleted in _mapped(q.path).items() if deleted]
        _pass_through(q, c, 20)
        assert len(_mapped(q.path)) <= 4
        assert not [place for place, deleted in _mapped(q.path).items() if deleted]
