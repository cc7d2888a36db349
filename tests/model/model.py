"""The queue as a dictionary: what an implementation owes its users, without any of the machinery.

Every seq that was ever claimed has an entry. The model knows exactly what is owed except right
after a SIGKILL, when the machine asks the independent reader and tells the model what it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

READY, HELD, SETTLED, GAP = "ready", "held", "settled", "gap"
FRAME = 48
BATCH_MOST = 4096


def extent(size: int) -> int:
    """Bytes of the frame of a payload without headers."""
    return (FRAME + size + 31) & ~31


@dataclass
class Entry:
    """One seq. Attempts are known exactly (low == high) unless a kill blurred them."""

    body: bytes
    state: Literal["ready", "held", "settled", "gap"] = READY
    low: int = 0
    high: int = 0
    how: str = ""  # it was settled: acked, skipped or gaps


@dataclass
class Model:
    """Obligations and counters. Methods raise AssertionError when the queue broke one."""

    segment_size: int
    ack_window: int
    capacity: int | None = None
    max_bytes: int | None = None
    sealed: bool = False
    entries: dict[int, Entry] = field(default_factory=dict)
    next_seq: int = 1
    volatile: set[int] = field(default_factory=set)  # settled, but a power cut may take that back
    count: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("delivered", "redelivered", "acked", "nacked", "skipped", "gaps", "bytes"), 0
        )
    )

    # ---- what is owed

    def seqs(self, *states: str) -> list[int]:
        """Seqs in any of these states, in order."""
        return [seq for seq, entry in sorted(self.entries.items()) if entry.state in states]

    def unsettled(self) -> list[int]:
        """What depth counts."""
        return self.seqs(READY, HELD, GAP)

    def backlog(self) -> int:
        """Bytes of the frames that are not settled."""
        return sum(extent(len(self.entries[seq].body)) for seq in self.unsettled())

    def deliverable(self) -> list[int]:
        """What reserve would hand out now, one after the other, if nothing is acked meanwhile."""
        floor = min(self.unsettled(), default=self.next_seq)
        words = self.ack_window // 32
        return [seq for seq in self.seqs(READY) if seq // 32 - floor // 32 < words]

    # ---- putting

    def refusal(self, sizes: Sequence[int]) -> str | None:
        """Why an atomic put of these payloads is refused, apart from the ring: None, or a name."""
        total = sum(extent(size) for size in sizes)
        if self.max_bytes is not None and total > self.max_bytes:
            return "TooLarge"
        if len(sizes) > 1 and (
            len(sizes) > BATCH_MOST
            or total > self.segment_size // 2
            or (self.capacity is not None and len(sizes) > self.capacity)
        ):
            return "TooLarge"
        if self.sealed:
            return "Sealed"
        if self.capacity is not None and len(self.unsettled()) + len(sizes) > self.capacity:
            return "capacity"
        if self.max_bytes is not None and self.backlog() + total > self.max_bytes:
            return "bytes"
        return None

    def fit(self, sizes: Sequence[int]) -> int:
        """How many of these a non-atomic put puts together."""
        most = min(self.segment_size // 2, self.max_bytes or self.segment_size)
        number, total = 0, 0
        for size in sizes[: min(BATCH_MOST, self.capacity or BATCH_MOST)]:
            total += extent(size)
            if total > most:
                break
            number += 1
        return max(number, 1)

    def accept(self, first: int, bodies: Sequence[bytes]) -> None:
        """A put returned, or was found whole after its producer died."""
        assert first == self.next_seq, f"seq {first} was given, {self.next_seq} was due"
        for body in bodies:
            self.entries[self.next_seq] = Entry(body)
            self.count["bytes"] += extent(len(body))
            self.next_seq += 1

    # ---- consuming

    def hand_out(self, seq: int, body: bytes, attempts: int) -> None:
        """reserve returned this."""
        due = self.deliverable()
        assert due, f"seq {seq} came, nothing was due"
        assert seq == due[0], f"seq {seq} came, {due[0]} was due"
        entry = self.entries[seq]
        assert body == entry.body, f"seq {seq} is altered"
        assert entry.low < attempts <= entry.high + 1, (
            f"seq {seq} has attempts={attempts}, {entry.low + 1}..{entry.high + 1} expected"
        )
        entry.state, entry.low, entry.high = HELD, attempts, attempts
        self.count["delivered"] += 1
        self.count["redelivered"] += attempts > 1

    def settle(self, seq: int, how: Literal["acked", "skipped", "gaps"] = "acked") -> None:
        """It is gone for good, unless a power cut takes the ack back."""
        entry = self.entries[seq]
        assert entry.state != SETTLED
        entry.state, entry.how = SETTLED, how
        self.volatile.add(seq)
        self.count[how] += 1

    def give_back(self, seqs: Iterable[int], nacked: bool = True) -> None:
        """nack, rewind, or the end of their consumer."""
        for seq in seqs:
            assert self.entries[seq].state == HELD
            self.entries[seq].state = READY
            self.count["nacked"] += nacked

    def gaps_settled(self, number: int) -> None:
        """The queue counts this many gaps as passed: the lowest ones, and all below hand-outs."""
        new = self.seqs(GAP)[: number - self.count["gaps"]]
        assert number == self.count["gaps"] + len(new), f"{number} gaps counted, too many or few"
        for seq in new:
            self.settle(seq, "gaps")
        gaps, held = self.seqs(GAP), self.seqs(HELD)
        assert not (gaps and held and gaps[0] < held[-1]), "an item came before a lower seq settled"

    def power_cut(self, owed: set[int], gaps: int, gaps_counted: int, blurred: bool) -> None:
        """Control is lost: what is owed now, how many gaps are, and how many count as passed.

        Attempts above 1 outlive it unless a killed consumer made them.
        """
        ready = set(self.seqs(READY))
        assert ready <= owed, f"{ready - owed} are lost"
        for seq in owed - ready:
            assert seq in self.volatile, f"the ack of {seq} was durable"
            self.unsettle(seq, READY)
        passed = [seq for seq in self.volatile if self.entries[seq].how == "gaps"]
        for seq in sorted(passed, reverse=True)[: self.count["gaps"] - gaps_counted]:
            self.unsettle(seq, GAP)
        for seq in self.seqs(GAP)[gaps:]:  # claims behind the last item leave no trace
            self.count["bytes"] -= extent(len(self.entries.pop(seq).body))
        assert (len(self.seqs(GAP)), self.count["gaps"]) == (gaps, gaps_counted)
        for entry in self.entries.values():
            if entry.low <= 1 or blurred:
                entry.low = 0

    def unsettle(self, seq: int, state: Literal["ready", "gap"]) -> None:
        """A power cut took the ack back."""
        self.volatile.remove(seq)
        self.count[self.entries[seq].how] -= 1
        self.entries[seq].state = state

    def stats(self) -> dict[str, int]:
        """What Stats has to say, field by field."""
        depth, held = len(self.unsettled()), len(self.seqs(HELD))
        settled = len(self.entries) - depth
        return {
            "items_enqueued": len(self.entries),
            "bytes_enqueued": self.count["bytes"],
            "items_delivered": self.count["delivered"],
            "items_redelivered": self.count["redelivered"],
            "items_acked": self.count["acked"],
            "items_nacked": self.count["nacked"],
            "items_skipped": self.count["skipped"],
            "items_settled": settled,
            "bytes_settled": self.count["bytes"] - self.backlog(),
            "claim_gaps": self.count["gaps"],
            "depth": depth,
            "backlog_bytes": self.backlog(),
            "reserved_items": held,
            "ready_items": depth - held,
            "next_seq": self.next_seq,
            "sealed": self.sealed,
            "lost_items": 0,
            "lost_bytes": 0,
            "torn_items": 0,
            "loss_events": 0,
            "poisoned": False,
            "fault": False,
        }
