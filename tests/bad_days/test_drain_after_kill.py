"""Goal: what is ready is found by calls that do not wait, whoever died in the middle of a put.

Method: under sync and group the consumer reads up to the durable watermark, which stands at the
first frame that is not settled; producers are killed there, and the next look must not stop short.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mpqueue
from rig import Child

SCRIPT = """
q = mpqueue.Queue(args[0], segment_size=1 << 20, durability=args[1].decode())
while True:
    say(q.put(bytes(100_000)))
"""


@pytest.mark.parametrize("durability", ["group", "sync"])
def test_drain_does_not_stop_at_the_claims_of_the_dead(tmp_path: Path, durability: str) -> None:
    """Broken once: a claim without a claimant, or an item without a flusher, hid all behind it."""
    path = tmp_path / "spool"
    mpqueue.Queue(path, segment_size=1 << 20, durability=durability).close()
    for round_ in range(25):
        with Child(SCRIPT, path, durability) as child:
            for _ in range(round_ % 5 + 1):
                accepted = int(child.hear())
            child.kill()
            assert child.process.stdout is not None
            for line in child.process.stdout.read().splitlines():
                accepted = int(line)
        with mpqueue.Queue(path) as q:
            after = q.put(b"after")
            with q.consumer() as c:
                seqs = []
                while (item := c.reserve(timeout=0)) is not None:
                    seqs.append(item.seq)
                    item.ack()
            assert accepted in seqs
            assert seqs[-1] == after
            assert len(q) == 0
            assert q.stats().lost_items == 0
