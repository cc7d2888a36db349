"""A soak by hand: many items through one queue, and nothing may grow.

Usage: python stress/soak.py [ITEMS]      default 10,000,000: some minutes

A producer and a consumer live from the first item to the last; both, and the queue's directory, are
sampled on the way (flat.py). Every item is checked to arrive once and in order.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

import mpqueue
from flat import Flatness, sample, sample_queue

BATCH = 1_000
SAMPLES = 200
NUMBER = struct.Struct("<Q")


def _produce(path: Path, items: int) -> None:
    with mpqueue.Queue(path, create=False) as q:
        for first in range(0, items, BATCH):
            last = min(first + BATCH, items)
            q.put_many([NUMBER.pack(n) + bytes(n % 100) for n in range(first, last)])
        q.seal()


def _consume(path: Path, items: int) -> None:
    expected = 0
    with mpqueue.Queue(path, create=False) as q, q.consumer() as consumer:
        try:
            while True:
                got = consumer.reserve_many(BATCH, timeout=60.0)
                for item in got:
                    (n,) = NUMBER.unpack_from(item.body)
                    if n != expected or len(item.body) != 8 + n % 100:
                        raise RuntimeError(f"item {n} instead of {expected}")
                    expected += 1
                consumer.ack_many(got)
        except mpqueue.Sealed:
            pass
    if expected != items:
        raise RuntimeError(f"{expected} items instead of {items}")


def _start(name: str, path: Path, items: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 0
    try:
        (_produce if name == "producer" else _consume)(path, items)
    except BaseException as error:
        print(f"soak: {name}: {error!r}", file=sys.stderr)
        status = 1
    os._exit(status)


def main(items: int) -> int:
    """0 when all items passed and nothing grew."""
    directory = Path(tempfile.mkdtemp(prefix="mpqueue-soak-"))
    path = directory / "queue"
    begun = time.monotonic()
    mpqueue.Queue(path, segment_size=1 << 20, durability="interval").close()
    living = {_start(name, path, items): Flatness(name) for name in ("producer", "consumer")}
    flat = [*living.values(), Flatness("queue")]
    failed = False
    while living:
        for pid, flatness in living.items():
            flatness.add(sample(pid))
        flat[-1].add(sample_queue(path))
        for sampled in flat:
            if len(sampled.samples) > SAMPLES:
                del sampled.samples[1::2]  # thinner, over the whole time
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            failed |= status != 0
            del living[pid]
        time.sleep(0.01)
    complaints = [text for sampled in flat for text in sampled.complaints()]
    print("\n".join(f"  {sampled}" for sampled in flat))
    for text in complaints:
        print(f"  VIOLATION: {text}")
    mpqueue.destroy(path)
    shutil.rmtree(directory)
    failed = failed or bool(complaints)
    seconds = time.monotonic() - begun
    print(f"soak: {items} items in {seconds:.0f} s, {'FAILED' if failed else '0 violations'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000))
