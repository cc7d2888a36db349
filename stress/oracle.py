"""Judges a storm from its ledgers alone: what was promised, what was delivered, what came twice.

Usage: python stress/oracle.py LEDGERS [--durability POLICY]
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import ledger


@dataclass
class Delivery:
    """One hand-out, and what its consumer did with it."""

    at: int
    seq: int
    attempts: int
    producer: int
    n: int
    consumer: int
    nacked: bool = False
    acked_at: int | None = None


@dataclass
class Verdict:
    """Violations in words, and counts."""

    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def bad(self, text: str) -> None:
        self.violations.append(text)


def _acknowledged(directory: Path) -> dict[tuple[int, int], int]:
    """(producer, n) -> seq of every item whose put is known to have returned."""
    found: dict[tuple[int, int], int] = {}
    for path in directory.glob("producer-*"):
        producer = int(path.name.rpartition("-")[2])
        for _, n, count, seq in ledger.read(path):
            for i in range(int(count)):
                found[producer, int(n) + i] = int(seq) + i
    for path in directory.glob("cli-*"):
        producer = int(path.name.rpartition("-")[2])
        for index, (printed,) in enumerate(ledger.read(path)):
            found[producer, index] = int(printed)
    return found


def _deliveries(directory: Path, verdict: Verdict) -> list[Delivery]:
    """All hand-outs in the order of time; checks that roles did not overlap."""
    found: list[Delivery] = []
    roles: list[tuple[int, int, int]] = []  # from, until, consumer
    for path in directory.glob("consumer-*"):
        consumer = int(path.name.rpartition("-")[2])
        open_: dict[int, Delivery] = {}
        began = last = 0
        for kind, at, *rest in ledger.read(path):
            last = int(at)
            if kind == "r":
                began = last
            elif kind == "d":
                seq, attempts, producer, n = map(int, rest)
                held = open_.get(seq)
                if held is not None and not held.nacked:
                    verdict.bad(f"seq {seq}: twice to consumer {consumer} without a nack")
                open_[seq] = Delivery(last, seq, attempts, producer, n, consumer)
                found.append(open_[seq])
            elif kind == "n":
                open_[int(rest[0])].nacked = True
            else:
                open_[int(rest[0])].acked_at = last
        if began:
            roles.append((began, last, consumer))
    roles.sort()
    for (_, until, one), (began, _, other) in pairwise(roles):
        if until > began:
            verdict.bad(f"consumers {one} and {other} had the role at the same time")
    verdict.counts["takeovers of the role"] = max(0, len(roles) - 1)
    return sorted(found, key=lambda delivery: (delivery.at, delivery.seq))


def _check_repeats(
    deliveries: list[Delivery], boots: list[int], durability: str, verdict: Verdict
) -> None:
    """A second hand-out needs a cause: a nack, the end of the consumer, for acks a lost boot."""
    previous: dict[int, Delivery] = {}
    repeats = 0
    for delivery in deliveries:
        before = previous.get(delivery.seq)
        previous[delivery.seq] = delivery
        if before is None:
            continue
        repeats += 1
        same_boot = bisect_right(boots, before.at) == bisect_right(boots, delivery.at)
        if before.acked_at is not None and (same_boot or durability == "sync"):
            verdict.bad(f"seq {delivery.seq}: delivered again after its ack returned")
        if same_boot and delivery.attempts <= before.attempts:
            verdict.bad(f"seq {delivery.seq}: attempts {delivery.attempts} did not grow")
    verdict.counts["redeliveries"] = repeats


def _check_order(deliveries: list[Delivery], verdict: Verdict) -> None:
    """First hand-outs ascend in seq, over all consumers; and so per producer in n."""
    seen: set[int] = set()
    newest: dict[int, int] = {}
    highest = -1
    for delivery in deliveries:
        if delivery.seq in seen:
            continue
        seen.add(delivery.seq)
        if delivery.seq < highest:
            verdict.bad(f"seq {delivery.seq}: first delivered after seq {highest}")
        highest = max(highest, delivery.seq)
        if delivery.n <= newest.get(delivery.producer, -1):
            verdict.bad(f"producer {delivery.producer}: item {delivery.n} out of order")
        newest[delivery.producer] = delivery.n


def judge(directory: Path, durability: str) -> Verdict:
    """Reads all ledgers of one storm and applies every rule."""
    verdict = Verdict()
    acknowledged = _acknowledged(directory)
    deliveries = _deliveries(directory, verdict)
    boots = [int(at) for _, at in ledger.read(directory / "boots")]
    where: dict[tuple[int, int], int] = {}
    for delivery in deliveries:
        if delivery.producer < 0:
            verdict.bad(f"seq {delivery.seq}: its bytes are not what any producer put")
            continue
        known = where.setdefault((delivery.producer, delivery.n), delivery.seq)
        if known != delivery.seq:
            verdict.bad(f"producer {delivery.producer} item {delivery.n}: two seqs")
    for (producer, n), seq in acknowledged.items():
        got = where.get((producer, n))
        if got is None:
            verdict.bad(f"LOST: producer {producer} item {n} seq {seq} was acknowledged")
        elif got != seq:
            verdict.bad(f"producer {producer} item {n}: put said seq {seq}, delivered as {got}")
    _check_repeats(deliveries, boots, durability, verdict)
    _check_order(deliveries, verdict)
    verdict.counts["acknowledged"] = len(acknowledged)
    verdict.counts["delivered"] = len(where)
    verdict.counts["delivered, put unanswered"] = len(where.keys() - acknowledged.keys())
    return verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ledgers", type=Path)
    parser.add_argument("--durability", default="group")
    arguments = parser.parse_args()
    outcome = judge(arguments.ledgers, arguments.durability)
    print(outcome.counts)
    print("\n".join(outcome.violations[:50]))
    sys.exit(1 if outcome.violations else 0)
