"""CPU time of a consumer that waits: a blocked reserve over ten seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import harness
from systems import load

SECONDS = 10.0


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Percent of one core; one run, since it is long and quiet."""
    q = load("mpqueue").Queue(options.directory / "idle")
    consumer = q.consumer()
    cpu, begun = time.process_time(), time.monotonic()
    if consumer.reserve(timeout=SECONDS) is not None:
        raise RuntimeError("an empty queue delivered an item")
    share = (time.process_time() - cpu) / (time.monotonic() - begun)
    q.close()
    report = harness.Report(f"Blocked reserve over {SECONDS:.0f} s")
    report.figures = [harness.Figure("idle/cpu", "share of one core", [share * 100], "%")]
    return [report]


if __name__ == "__main__":
    harness.main(__doc__, measure)
