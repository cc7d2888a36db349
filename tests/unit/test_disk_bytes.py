"""Goal: `disk_bytes` is what lies in the directory, also after producers were killed.

Method: files as a killed preparer leaves them, unnamed, named twice or named and unknown to the
ring, are put beside a living queue; both stats, from inside and from outside, must equal the sum
over the directory. Broken once: such a file showed nowhere until somebody opened alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.reader import inspect
from mpqueue.reader.stats import read_stats

SEGMENT = 1 << 20


def _on_disk(spool: Path) -> int:
    """Bytes of all files, each counted once whatever its names."""
    files = {entry.stat().st_ino: entry.stat().st_size for entry in os.scandir(spool)}
    return sum(files.values())


def _agree(q: mpqueue.Queue, spool: Path) -> None:
    with inspect(spool) as view:
        outside = read_stats(view)
    assert outside is not None
    assert q.stats().disk_bytes == outside.disk_bytes == _on_disk(spool)


@pytest.mark.parametrize("names", [["preparing"], ["segment"], ["preparing", "segment"]])
def test_what_a_dead_preparer_left_is_counted(
    open_queue: OpenQueue, spool: Path, names: list[str]
) -> None:
    q = open_queue(segment_size=SEGMENT, durability="none")
    q.put(b"x")
    _agree(q, spool)
    before = q.stats().disk_bytes
    left = {"preparing": spool / "preparing-17-0", "segment": spool / "segment-000000000009"}
    left[names[0]].write_bytes(bytes(SEGMENT))
    for name in names[1:]:
        left[name].hardlink_to(left[names[0]])
    assert q.stats().disk_bytes == before + SEGMENT
    _agree(q, spool)


def test_saved_bytes_and_strangers_are_not_counted(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(durability="none")
    before = q.stats().disk_bytes
    (spool / "notes.txt").write_bytes(b"mine")
    (spool / "corrupt").mkdir()
    (spool / "corrupt" / "saved").write_bytes(b"bytes")
    (spool / "segment-000000000009").mkdir()
    with inspect(spool) as view:
        outside = read_stats(view)
    assert outside is not None
    assert q.stats().disk_bytes == outside.disk_bytes == before


def test_a_killed_preparers_file_goes_with_the_next_segment(
    open_queue: OpenQueue, spool: Path
) -> None:
    """Whoever prepares next removes it, while others have the queue open all the time."""
    q = open_queue(segment_size=SEGMENT, durability="none")
    left = spool / "preparing-17-0"
    left.write_bytes(bytes(SEGMENT))
    for _ in range(SEGMENT // 1000):
        q.put(bytes(1000))
    assert not left.exists()
    _agree(q, spool)
