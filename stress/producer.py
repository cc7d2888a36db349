"""A producer of the storm: puts its items in order and records each put that returned.

Usage: python stress/producer.py QUEUE LEDGER ID
SIGTERM ends it after the put in hand.
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from types import FrameType

import mpqueue
import payload
from ledger import Ledger

BATCH_ITEM = 3_000  # items above are put alone, so that a batch stays within half a segment
LONG_BATCH = 330


def run(queue: str, ledger_path: Path, producer: int) -> None:
    """Puts until SIGTERM: single items, and batches of consecutive small ones."""
    stop = False

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_sigterm)
    ledger = Ledger(ledger_path)
    choices = random.Random(producer)
    q = mpqueue.Queue(queue, create=False)
    long = producer % payload.KINDS == 1
    n = 0
    while not stop:
        bodies = [payload.make(producer, n)]
        if choices.random() < (0.5 if long else 0.2):
            for ahead in range(1, LONG_BATCH if long else choices.randint(2, 8)):
                body = payload.make(producer, n + ahead)
                if max(len(body), len(bodies[0])) > BATCH_ITEM:
                    break
                bodies.append(body)
        first = q.put(bodies[0]) if len(bodies) == 1 else q.put_many(bodies)[0]
        ledger.write(f"a {n} {len(bodies)} {first}\n")
        n += len(bodies)
    q.close()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
