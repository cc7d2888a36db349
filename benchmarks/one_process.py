"""Put, reserve and ack of one item in one process, against the standard library's queues."""

from __future__ import annotations

from collections.abc import Sequence

import harness
import systems


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Policy none, 100 bytes, one item at a time."""
    contenders = harness.available(
        systems.Mpqueue("none"), systems.MultiprocessingSimpleQueue(), systems.ThreadQueue()
    )
    report = harness.Report(
        "One process: put + reserve + ack of 100 bytes, policy none",
        harness.interleave(contenders, options, producers=0, consumers=0),
    )
    report.ratio(
        "one-process/SimpleQueue",
        "against multiprocessing.SimpleQueue put + get",
        "mpqueue none",
        "multiprocessing.SimpleQueue",
    )
    return [report]


if __name__ == "__main__":
    harness.main(__doc__, measure)
