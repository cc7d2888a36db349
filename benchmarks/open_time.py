"""How long opening takes with a million items of backlog: same boot, and after a lost boot.

The second case is simulated: MPQ_BOOT_ID gives the process another boot id than the one recorded
in the queue, so that control is not trusted and recovery walks the backlog. The page cache stays
warm; a real restart reads the headers from the disk first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import harness
from systems import BODY, load

ITEMS = 1_000_000
CHUNK = 4_000

OPEN = """
import sys, time, mpqueue
begun = time.monotonic()
q = mpqueue.Queue(sys.argv[1], create=False)
print(time.monotonic() - begun, len(q))
q.close()
"""


def _open_seconds(path: Path, boot_id: str | None) -> float:
    """Seconds of the Queue() call alone, in a fresh interpreter."""
    environment = dict(os.environ)
    environment.pop("MPQ_BOOT_ID", None)
    if boot_id is not None:
        environment["MPQ_BOOT_ID"] = boot_id
    done = subprocess.run(
        [sys.executable, "-P", "-c", OPEN, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, depth = done.stdout.split()
    if int(depth) != ITEMS:
        raise RuntimeError(f"{depth} items after opening {path}, expected {ITEMS}")
    return float(seconds)


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Milliseconds of opening a queue of a million 100-byte items."""
    path = options.directory / "backlog"
    q = load("mpqueue").Queue(path, durability="none")
    bodies = [BODY] * CHUNK
    for _ in range(ITEMS // CHUNK):
        q.put_many(bodies)
    q.close()
    same, lost = [], []
    for _ in range(options.rounds):
        same.append(_open_seconds(path, None) * 1e3)
        boot_id = str(uuid.uuid4())
        lost.append(_open_seconds(path, boot_id) * 1e3)
        _open_seconds(path, None)  # records the real boot id again, by one more recovery
    report = harness.Report(f"Opening a queue with {ITEMS:,} items of 100 bytes")
    report.figures = [
        harness.Figure("open/same-boot", "same boot", same, "ms"),
        harness.Figure("open/lost-boot", "after a crash of the system", lost, "ms"),
    ]
    return [report]


if __name__ == "__main__":
    harness.main(__doc__, measure)
