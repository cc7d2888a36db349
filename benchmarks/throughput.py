"""One and four producer processes to one consumer process, item by item and in batches of 100.

The backlog is bounded as for the peers: pyzmq by 100,000 messages, mpqueue by 4 segments of 4 MiB,
which hold as many.
"""

from __future__ import annotations

from collections.abc import Sequence

import harness
import systems

_RING = {"segment_size": 1 << 22, "max_segments": 4, "keep_segments": 4}


def _single(options: harness.Options, producers: int) -> harness.Report:
    contenders = harness.available(
        systems.Mpqueue("none", **_RING),
        systems.MultiprocessingQueue(),
        systems.MultiprocessingSimpleQueue(),
        systems.FasterFifo(),
        systems.ZmqIpc(),
    )
    report = harness.Report(
        f"{producers} producer(s) -> 1 consumer, item by item, 100 bytes, policy none",
        harness.interleave(contenders, options, producers=producers, consumers=1),
    )
    for peer in contenders[1:]:
        report.ratio(
            f"{producers}-to-1/{peer.name}", f"against {peer.name}", "mpqueue none", peer.name
        )
    return report


def _batched(options: harness.Options) -> harness.Report:
    ours = systems.Mpqueue("none", batch=100, **_RING)
    contenders = harness.available(
        ours, systems.ZmqIpc(), systems.ZmqIpc(batch=100), systems.FasterFifo(batch=100)
    )
    report = harness.Report(
        "1 producer -> 1 consumer, put_many(100) and reserve_many(100), 100 bytes, policy none",
        harness.interleave(contenders, options, producers=1, consumers=1),
    )
    for peer in contenders[1:]:
        report.ratio(f"batch/{peer.name}", f"against {peer.name}", ours.name, peer.name)
    return report


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Throughput from the common start to the consumer's last ack."""
    return [_single(options, 1), _single(options, 4), _batched(options)]


if __name__ == "__main__":
    harness.main(__doc__, measure)
