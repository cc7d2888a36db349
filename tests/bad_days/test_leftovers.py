"""Goal: files of killed preparers do not pile up while others keep the queue open.

Method: names as a dead and a living member would have left them, then puts into new segments.
"""

from __future__ import annotations

from pathlib import Path

import mpqueue
from conftest import OpenQueue

NEVER_GIVEN = 1 << 54  # an incarnation that nobody has


def test_a_dead_preparers_file_goes_with_the_next_segment(
    open_queue: OpenQueue, spool: Path
) -> None:
    queue = open_queue(segment_size=64 * 1024, durability="none")
    with mpqueue.inspect(spool) as view:
        (member,) = view.members
    dead = spool / f"preparing-{NEVER_GIVEN}-0"
    living = spool / f"preparing-{member.incarnation}-1000"
    dead.write_bytes(bytes(64 * 1024))
    living.write_bytes(b"in preparation")
    for _ in range(5):
        queue.put(bytes(30_000))
    assert len(list(spool.glob("segment-*"))) > 1
    assert not dead.exists()
    assert living.exists()
