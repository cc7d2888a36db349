"""A consumer of the storm: waits for the role, then reserves, records, acks in any order.

Usage: python stress/consumer.py QUEUE LEDGER ID
It ends when the queue is sealed and drained, on SIGTERM between two hand-outs, or on SIGINT out of
a wait. Now and then it
forks a child that outlives a killed parent for a moment: the child must neither keep the role nor
settle what its parent reserved.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mpqueue
import payload
from ledger import Ledger

ROLE_WAIT = 600.0


class _Stop(Exception):
    """SIGTERM while waiting for the role, SIGINT while waiting for that or for items."""


class _Signals:
    """Break off the wait for the role; later SIGTERM only asks, so that no record is torn."""

    def __init__(self) -> None:
        self.asked = False
        self.waiting = False  # for the role
        self.reserving = False
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.asked = True
        if self.waiting or (self.reserving and number == signal.SIGINT):
            raise _Stop


def _fork_child(q: Any, held: list[Any]) -> None:
    """A child that checks what it must not inherit, joins as itself, and lingers."""
    if os.fork():
        return
    status = 0
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if held:
            try:
                held[0].ack()
                raise RuntimeError("a forked child settled its parent's reservation")
            except mpqueue.MpqueueError:
                pass
        q.qsize()
        time.sleep(0.1)
    except BaseException as error:
        os.write(2, f"forked child: {error!r}\n".encode())
        status = 1
    os._exit(status)


def _settle(consumer: Any, ledger: Ledger, held: list[Any], choices: random.Random) -> None:
    """Acks most of what is held, in any order and by every call there is; nacks some."""
    choices.shuffle(held)
    keep = held[: choices.randint(0, 5)] if choices.random() < 0.3 else []
    done = held[len(keep) :]
    held[:] = keep
    if choices.random() < 0.1:
        back = done[: choices.randint(0, 3)]
        done = done[len(back) :]
        for item in back:
            ledger.write(f"n {time.monotonic_ns()} {item.seq}\n")
            item.nack()
    if choices.random() < 0.3:
        consumer.ack_many(done)
    else:
        for item in done:
            item.ack()
    now = time.monotonic_ns()
    ledger.write("".join(f"k {now} {item.seq}\n" for item in done))


def run(queue: str, ledger_path: Path, number: int) -> None:
    """Consumes until the queue is sealed and drained."""
    signals = _Signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ledger = Ledger(ledger_path)
    choices = random.Random(number)
    held: list[Any] = []
    try:
        q = mpqueue.Queue(queue, create=False)
        signals.waiting = True
        consumer = q.consumer(wait=ROLE_WAIT)
        signals.waiting = False
        ledger.write(f"r {time.monotonic_ns()}\n")
        while not signals.asked:
            signals.reserving = True
            if choices.random() < 0.5:
                one = consumer.reserve(timeout=0.2)
                items = [] if one is None else [one]
            else:
                items = consumer.reserve_many(choices.randint(1, 50), timeout=0.2)
            signals.reserving = False
            lines = []
            for item in items:
                producer, n = payload.identify(bytes(item.body)) or (-1, -1)
                now = time.monotonic_ns()
                lines.append(f"d {now} {item.seq} {item.attempts} {producer} {n}\n")
            ledger.write("".join(lines))
            held += items
            if choices.random() < 0.003:
                _fork_child(q, held)
            if len(held) > 100 or not items or choices.random() < 0.7:
                _settle(consumer, ledger, held, choices)
    except (mpqueue.Sealed, _Stop):
        signals.waiting = signals.reserving = False
    q.close()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
