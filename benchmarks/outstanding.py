"""What reserve and ack cost with many items in hand, with and without leases.

    python benchmarks/outstanding.py

Each round puts and reserves `outstanding` items, then times single `reserve()` calls past them and
the acks of what these returned. `expiry` is the first reserve after all leases have run out, for
each of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from systems import load

OUTSTANDING = (0, 10_000, 32_000)
TIMED = 500  # 32,500 are within the default ack_window
LEASES = {"no lease": None, "lease": 3600.0}
BODY = b"x" * 100


def _round(path: Path, lease: float | None, outstanding: int) -> dict[str, float]:
    """Microseconds a call."""
    mpqueue: Any = load("mpqueue")
    found: dict[str, float] = {}
    with mpqueue.Queue(path, durability="none", lease_timeout=lease) as q:
        for _ in range(0, outstanding + TIMED, 500):
            q.put_many([BODY] * 500)
        with q.consumer() as c:
            held = c.reserve_many(outstanding) if outstanding else []
            begun = time.perf_counter()
            timed = [c.reserve(0) for _ in range(TIMED)]
            found["reserve"] = (time.perf_counter() - begun) / TIMED * 1e6
            begun = time.perf_counter()
            for item in timed:
                item.ack()
            found["ack"] = (time.perf_counter() - begun) / TIMED * 1e6
            if lease is not None and outstanding:
                for item in held:
                    item.extend(0)
                time.sleep(0.001)  # all of them are over
                begun = time.perf_counter()
                first = c.reserve(0)
                found["expiry"] = (time.perf_counter() - begun) / outstanding * 1e6
                if first is None or q.stats().leases_expired != outstanding:
                    raise RuntimeError("leases did not end")
            c.rewind()
    mpqueue.destroy(path)
    return found


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Costs by number of items in hand."""
    path = options.directory / "outstanding"
    report = harness.Report("Items in hand: microseconds a call")
    for name, lease in LEASES.items():
        for outstanding in OUTSTANDING:
            rounds = [_round(path, lease, outstanding) for _ in range(options.rounds)]
            for what in rounds[0]:
                report.figures.append(
                    harness.Figure(
                        f"outstanding/{what}/{name}/{outstanding}",
                        f"{what}, {outstanding:,} in hand, {name}",
                        [one[what] for one in rounds],
                        "us",
                    )
                )
    return [report]


if __name__ == "__main__":
    harness.main(__doc__, measure)
