"""A producer of the storm: puts its items in order and records each put that returned.

Usage: python stress/producer.py QUEUE LEDGER ID
SIGTERM ends it after the put in hand. SIGINT breaks a put off, whose outcome is then unknown; the
handle goes on. Now and then it forks a child that puts a few items as another producer, through
the handle that it inherited, and outlives a killed parent.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import mpqueue
import payload
from ledger import Ledger

BATCH_ITEM = 3_000  # items above are put alone, so that a batch stays within half a segment
LONG_BATCH = 330
CHILDREN = 10**9  # ids of forked children follow id * CHILDREN: no other process has them
CHILD_ITEMS = 10


def _fork_child(q: Any, ledgers: Path, number: int) -> None:
    """A child that joins as itself and puts; a queue that is sealed meanwhile is its end."""
    if os.fork():
        return
    status = 0
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ledger = Ledger(ledgers / f"producer-{number}")
        for n in range(CHILD_ITEMS):
            ledger.write(f"a {n} 1 {q.put(payload.make(number, n))}\n")
    except mpqueue.Sealed:
        pass
    except BaseException as error:
        os.write(2, f"forked producer: {error!r}\n".encode())
        status = 1
    os._exit(status)


def run(queue: str, ledger_path: Path, producer: int) -> None:
    """Puts until SIGTERM: single items, and batches of consecutive small ones."""
    stop = breakable = False

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if breakable:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, on_sigint)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ledger = Ledger(ledger_path)
    choices = random.Random(producer)
    q = mpqueue.Queue(queue, create=False)
    long = producer % payload.KINDS == 1
    n = children = 0
    while not stop:
        bodies = [payload.make(producer, n)]
        if choices.random() < (0.5 if long else 0.2):
            for ahead in range(1, LONG_BATCH if long else choices.randint(2, 8)):
                body = payload.make(producer, n + ahead)
                if max(len(body), len(bodies[0])) > BATCH_ITEM:
                    break
                bodies.append(body)
        try:
            breakable = True
            first = q.put(bodies[0]) if len(bodies) == 1 else q.put_many(bodies)[0]
            breakable = False
            ledger.write(f"a {n} {len(bodies)} {first}\n")
        except KeyboardInterrupt:
            breakable = False
        n += len(bodies)
        if producer < CHILDREN and choices.random() < 0.001 and children < CHILDREN - 1:
            children += 1
            _fork_child(q, ledger_path.parent, producer * CHILDREN + children)
    q.close()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
