"""The first process of the model test: every call of the API, and what the model says of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import mpqueue
from model import HELD, READY, SETTLED, Model

SEGMENT, WINDOW = 1 << 16, 64

SIZES = st.sampled_from([0, 1, 47, 100, 1000, 9000, 30000, 70000])
MANY = st.one_of(
    st.lists(st.sampled_from([0, 1, 100, 1500, 12000]), min_size=1, max_size=12),
    st.integers(13, 80).map(lambda number: [number % 5] * number),  # beyond the ack window
)
FEW = st.integers(1, 60)


class Machine(RuleBasedStateMachine):
    """One queue, this process, at times a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="mpq-model-")
        self.path = Path(self.directory) / "spool"
        self.boots = 0
        self.gate_name = ""
        os.environ["MPQ_BOOT_ID"] = "boot-0"
        self.queue: mpqueue.Queue | None = None
        self.consumer: mpqueue.Consumer | None = None
        self.held: dict[int, mpqueue.Item] = {}
        self.stale: list[mpqueue.Item] = []
        self.peer: subprocess.Popen[str] | None = None
        self.peer_consumes = False
        self.peer_held: list[int] = []
        self.unsure = False  # a kill may have left what only a flush of the consumer makes visible
        self.blurred = False  # a consumer was killed, so counts may be newer than the cursor file
        self.dirty = False  # this consumer settled something since its last cursor write
        self.streams = 0
        self.numbers = 0

    # ---- helpers

    def bodies(self, sizes: list[int]) -> list[bytes]:
        self.numbers += len(sizes)
        return [
            (b"%d:" % (self.numbers - i)).ljust(size, b"x")[:size] for i, size in enumerate(sizes)
        ]

    def open(self, **options: object) -> None:
        self.queue = mpqueue.Queue(self.path, **options)
        self.gate_name = self.queue.gate_name

    @property
    def q(self) -> mpqueue.Queue:
        assert self.queue is not None
        return self.queue

    @property
    def c(self) -> mpqueue.Consumer:
        assert self.consumer is not None
        return self.consumer

    def put(self, call: Callable[[], int], bodies: list[bytes], atomic: bool = True) -> None:
        """A put that does not wait, against what the model expects of it."""
        refusal = self.model.refusal([len(body) for body in bodies])
        try:
            first = call()
        except mpqueue.TooLarge:
            assert refusal == "TooLarge"
        except mpqueue.Sealed:
            assert refusal == "Sealed"
        except mpqueue.Full as full:
            self.is_full(full.reason, refusal)
        else:
            assert refusal is None, f"accepted, though refused by {refusal}"
            self.model.accept(first, bodies)

    def is_full(self, reason: str, refusal: str | None) -> None:
        if reason != "ring":
            assert reason == refusal
            return
        assert refusal is None
        stats = self.q.stats()
        assert stats.segments >= self.q.options.max_segments - 1 - 2  # a batch may need two more

    def received(self, item: mpqueue.Item) -> None:
        self.model.hand_out(item.seq, item.body, item.attempts)
        assert item.id.split(":")[0] == self.q.uuid
        assert item.headers == {}
        self.held[item.seq] = item

    def pick(self, data: st.DataObject) -> mpqueue.Item:
        return self.held[data.draw(st.sampled_from(sorted(self.held)))]

    def settled(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.model.settle(seq)
            del self.held[seq]
        self.dirty = self.dirty or bool(seqs)
        if self.durability == "sync":
            self.persisted()

    def persisted(self, always: bool = False) -> None:
        if self.dirty or always:
            self.model.volatile.clear()
        self.dirty = False

    # ---- the queue

    @initialize(
        durability=st.sampled_from(["none", "interval", "group", "sync"]),
        segments=st.integers(4, 6),
        keep=st.integers(0, 2),
        capacity=st.sampled_from([None, None, 40]),
    )
    def create(self, durability: str, segments: int, keep: int, capacity: int | None) -> None:
        self.durability = durability
        self.model = Model(SEGMENT, WINDOW, capacity)
        self.open(
            segment_size=SEGMENT,
            ack_window=WINDOW,
            max_segments=segments,
            keep_segments=keep,
            capacity=capacity,
            durability=durability,
        )

    @precondition(lambda self: self.queue is None)
    @rule()
    def reopen(self) -> None:
        self.open(create=False)

    @precondition(lambda self: self.queue is not None)
    @rule()
    def close(self) -> None:
        self.q.close()
        self.forget_consumer()
        assert self.q.stats().depth == len(self.model.unsettled())
        self.queue = None

    def forget_consumer(self) -> None:
        if self.consumer is not None:
            self.model.give_back(list(self.held), nacked=False)
            self.held.clear()
            self.stale.clear()
            self.persisted()
            self.consumer = None

    @precondition(lambda self: self.queue is None and self.peer is None)
    @rule()
    def reboot(self) -> None:
        """Everybody is gone and the next open sees another boot: control is not believed."""
        self.boots += 1
        os.environ["MPQ_BOOT_ID"] = f"boot-{self.boots}"
        with mpqueue.inspect(self.path) as view:
            owed = {record.seq for record in view.items()}
        self.open(create=False)
        stats, model = self.q.stats(), self.model
        model.power_cut(owed, stats.depth - len(owed), stats.claim_gaps, self.blurred)
        assert stats.next_seq >= model.next_seq
        model.next_seq = stats.next_seq
        for name in (
            "delivered",
            "redelivered",
            "nacked",
        ):  # as of the last cursor write
            now = getattr(stats, f"items_{name}")
            assert now == model.count[name] or (self.blurred and now < model.count[name])
            model.count[name] = now
        self.blurred = False

    # ---- putting

    @precondition(lambda self: self.queue is not None)
    @rule(size=SIZES, how=st.sampled_from(["put", "nowait", "timeout"]))
    def put_one(self, size: int, how: str) -> None:
        bodies = self.bodies([size])
        calls: dict[str, Callable[[], int]] = {
            "put": lambda: self.q.put(bodies[0], block=False),
            "nowait": lambda: self.q.put_nowait(bodies[0]),
            "timeout": lambda: self.q.push(bytearray(bodies[0]), timeout=0.0001),
        }
        self.put(calls[how], bodies)

    @precondition(lambda self: self.queue is not None)
    @rule(sizes=MANY)
    def put_many(self, sizes: list[int]) -> None:
        bodies = self.bodies(sizes)

        def call() -> int:
            seqs = self.q.put_many(iter(bodies), timeout=0)
            assert len(seqs) == len(bodies)
            return seqs.start

        self.put(call, bodies)

    @precondition(lambda self: self.queue is not None)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=15))
    def put_split(self, sizes: list[int]) -> None:
        bodies = self.bodies(sizes)
        try:
            ranges = self.q.put_many(bodies, atomic=False, timeout=0)
            accepted = len(bodies)
            assert sum(map(len, ranges)) == accepted
            why = None
        except mpqueue.MpqueueError as error:
            accepted = error.accepted
            why = error
        while bodies:
            fit = self.model.fit([len(body) for body in bodies])
            refusal = self.model.refusal([len(body) for body in bodies[:fit]])
            if accepted == 0 and why is not None:
                if isinstance(why, mpqueue.Full):
                    self.is_full(why.reason, refusal)
                else:
                    assert type(why).__name__ == refusal
                break
            assert refusal is None
            self.model.accept(self.model.next_seq, bodies[:fit])
            bodies, accepted = bodies[fit:], accepted - fit
        assert accepted == 0

    @precondition(lambda self: self.queue is not None)
    @rule(sizes=st.lists(SIZES, max_size=5), fails=st.booleans())
    def put_batch(self, sizes: list[int], fails: bool) -> None:
        bodies = self.bodies(sizes)

        def call() -> int:
            with self.q.batch(timeout=0) as batch:
                for body in bodies:
                    batch.append(body)
                if fails:
                    raise KeyError
            assert batch.seqs is not None
            assert len(batch.seqs) == len(bodies)
            return batch.seqs.start if bodies else self.model.next_seq

        if fails or not bodies:
            with pytest.raises(KeyError) if fails else contextlib.nullcontext():
                call()
        else:
            self.put(call, bodies)

    # ---- consuming

    @precondition(lambda self: self.queue is not None and self.consumer is None)
    @rule()
    def take_role(self) -> None:
        if self.peer_consumes:
            with pytest.raises(mpqueue.ConsumerBusy) as busy:
                self.q.consumer()
            assert self.peer is not None
            assert busy.value.pid == self.peer.pid
            return
        self.consumer = self.q.consumer()

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def close_consumer(self) -> None:
        items = list(self.held.values())
        self.c.close()
        self.forget_consumer()
        for item in items:
            with pytest.raises(mpqueue.Closed):
                item.ack()

    def timeout(self, due: list[int]) -> float | None:
        """What is due must come; after a kill the consumer may have to make it visible first."""
        return None if due and self.unsure else 0

    @precondition(lambda self: self.consumer is not None)
    @rule(how=st.sampled_from(["reserve", "reserve", "take", "skip", "peek", "wait"]))
    def next_one(self, how: str) -> None:
        due = self.model.deliverable()
        if how in ("skip", "peek", "wait") and due and self.unsure:
            assert self.c.wait()
        try:
            if how in ("reserve", "take"):
                item = getattr(self.c, how)(self.timeout(due))
                assert (item is not None) == bool(due)
                if item is not None:
                    self.received(item)
                    if how == "take":
                        self.settled([item.seq])
            elif how == "skip":
                seq = self.c.skip()
                assert seq == (due[0] if due else None)
                if seq is not None:
                    self.model.settle(seq, "skipped")
                    self.dirty = True
            elif how == "peek":
                item = self.c.peek()
                assert (item.seq if item else None) == (due[0] if due else None)
                assert item is None or item.body == self.model.entries[item.seq].body
            else:
                assert self.c.wait(0) == bool(due)
        except mpqueue.Sealed:
            assert self.model.sealed
            assert not self.model.seqs(READY, HELD)

    @precondition(lambda self: self.consumer is not None)
    @rule(number=FEW, max_bytes=st.sampled_from([None, None, 1, 1500, 40000]))
    def reserve_many(self, number: int, max_bytes: int | None) -> None:
        due = self.model.deliverable()
        expected: list[int] = []
        total = 0
        for seq in due[:number]:
            size = len(self.model.entries[seq].body)
            if expected and max_bytes is not None and total + max(size, 1) > max_bytes:
                break
            total += size
            expected.append(seq)
        try:
            items = self.c.reserve_many(number, max_bytes=max_bytes, timeout=self.timeout(due))
        except mpqueue.Sealed:
            assert self.model.sealed
            assert not self.model.seqs(READY, HELD)
            return
        seqs = [item.seq for item in items]
        for item in items:
            self.received(item)
        assert seqs == (expected[: max(len(seqs), 1)] if self.unsure else expected)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), durable=st.booleans())
    def ack(self, data: st.DataObject, durable: bool) -> None:
        item = self.pick(data)
        item.ack(durable)
        item.ack()
        assert item.settled
        self.settled([item.seq])
        if durable:
            self.persisted()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack_many(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, min_size=1))
        items = [self.held[seq] for seq in chosen]
        stale = [
            item
            for item in self.stale
            if item.seq not in chosen and self.model.entries[item.seq].state in (READY, HELD)
        ][:1]
        if stale:
            with pytest.raises(mpqueue.StaleItem):
                self.c.ack_many(items + stale)
        else:
            self.c.ack_many(items)
        self.settled(chosen)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack_up_to(self, data: st.DataObject) -> None:
        bound = data.draw(st.sampled_from(sorted(self.held))) + data.draw(st.integers(0, 1))
        with pytest.raises(mpqueue.OutOfRange):
            self.c.ack_up_to(self.model.next_seq + 1)
        below = [seq for seq in self.held if seq < bound]
        passed = [self.held[seq] for seq in below]
        assert self.c.ack_up_to(bound) == len(below)
        self.settled(below)
        for item in passed:
            item.ack()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["nack", "drop", "with"]))
    def nack(self, data: st.DataObject, how: str) -> None:
        item = self.pick(data)
        if how == "nack":
            self.c.nack(item)
            self.stale.append(item)
        elif how == "with":
            with pytest.raises(KeyError), item:
                raise KeyError
            self.stale.append(item)
        self.model.give_back([item.seq])
        del self.held[item.seq]
        if how == "drop":
            with pytest.warns(ResourceWarning, match="dropped without ack"):
                del item

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def act_on_stale(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.stale))
        if self.model.entries[item.seq].state == SETTLED:
            # By a later hand-out or a skip; whose it was is forgotten when the floor has passed it.
            with contextlib.suppress(mpqueue.StaleItem):
                item.ack()
        else:
            with pytest.raises(mpqueue.StaleItem):
                item.ack()
        with pytest.raises(mpqueue.StaleItem):
            item.nack()

    @precondition(lambda self: self.consumer is not None)
    @rule()
    def rewind(self) -> None:
        number, _ = self.c.rewind()
        assert number == len(self.held)
        self.model.give_back(list(self.held))
        self.stale += self.held.values()
        self.held.clear()

    # ---- keeping

    @precondition(lambda self: self.queue is not None)
    @rule()
    def flush(self) -> None:
        self.q.flush()
        if self.consumer is not None:
            self.persisted()
        assert self.q.stats().unsynced_items == 0

    @precondition(lambda self: self.queue is not None and not self.peer_consumes)
    @rule()
    def checkpoint(self) -> None:
        self.q.checkpoint()
        self.persisted(always=True)

    @precondition(lambda self: self.queue is not None)
    @rule(undo=st.sampled_from([False, True, True]))
    def seal(self, undo: bool) -> None:
        self.q.seal(undo=undo)
        self.model.sealed = not undo

    @precondition(lambda self: self.queue is not None)
    @rule(
        capacity=st.sampled_from([None, None, 3, 50]),
        max_bytes=st.sampled_from([None, None, 5000, 100000]),
    )
    def set_bounds(self, capacity: int | None, max_bytes: int | None) -> None:
        self.q.set_options(capacity=capacity, max_bytes=max_bytes)
        self.model.capacity, self.model.max_bytes = capacity, max_bytes
        assert self.q.full() == (
            (capacity is not None and len(self.model.unsettled()) >= capacity)
            or (max_bytes is not None and self.model.backlog() >= max_bytes)
        )
