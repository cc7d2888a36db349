"""Goal: a segment file that cannot be removed is counted while it is there, and goes when it can.

Method: an ext4 of our own, whose directory is made append-only: files come, but none goes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import mpqueue
from mpqueue import metrics
from rig import need_tool, small_ext4

SEGMENT = 1 << 16


def segments(path: Path) -> int:
    return len(list(path.glob("segment-*")))


def test_unreclaimed_rises_while_unlink_fails_and_falls_after(tmp_path: Path) -> None:
    chattr = need_tool("chattr")
    with small_ext4(tmp_path, 8 << 20) as disk:
        path = disk / "spool"
        with (
            mpqueue.Queue(path, segment_size=SEGMENT, keep_segments=0, durability="none") as q,
            q.consumer() as c,
        ):
            for _ in range(60):
                q.put(bytes(4000))
            subprocess.run([chattr, "+a", path], check=True)
            made = segments(path)
            for _ in range(40):
                c.take()
            c.checkpoint()
            stuck = q.stats()
            assert stuck.unreclaimed > 1
            assert stuck.segments_removed == 0
            assert segments(path) == made
            assert metrics.read(path).values["unreclaimed"] == stuck.unreclaimed
            for _ in range(20):
                c.take()
            c.checkpoint()
            assert q.stats().unreclaimed > stuck.unreclaimed, "all that waits, not one"
            q.put(b"goes on")
            subprocess.run([chattr, "-a", path], check=True)
            c.checkpoint()
            after = q.stats()
            assert after.unreclaimed == 0
            assert after.segments_removed > stuck.unreclaimed
            assert segments(path) == after.segments
            assert c.take().body == b"goes on"
