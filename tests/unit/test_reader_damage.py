"""The second reader against the core on damaged queues: what is delivered, and what is lost.

Method: hypothesis thinks of damage to a small closed queue (flipped bits, zeroed and copied bytes,
truncation, files that change places or vanish). The reader looks first; then the core opens it,
as the queue that it closed (control is trusted) or as a restored copy (control is rebuilt), the
reader looks again, and the core drains it. All must name the same items. Hypothesis prints the
damage of a failure and how to replay it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import mpqueue
from mpqueue import layout, semaphore
from mpqueue.reader import inspect, verify

SMALL = {"segment_size": 64 * 1024, "ack_window": 64, "max_members": 2}
SEGMENTS = 3


class Harm(NamedTuple):
    """One blow to a segment; `place` and `other` are parts of 65536 of its length."""

    kind: str
    segment: int
    place: int
    other: int
    length: int


HARMS = st.builds(
    Harm,
    kind=st.sampled_from(("flip", "flip", "flip", "zero", "copy", "truncate", "swap", "remove")),
    segment=st.integers(0, SEGMENTS - 1),
    place=st.integers(0, 65_535),
    other=st.integers(0, 65_535),
    length=st.integers(1, 6_000),
)


def make(path: Path) -> None:
    """Three segments, a batch, items acked at the floor and above it."""
    with mpqueue.Queue(path, **SMALL) as queue:
        for number in range(30):
            queue.put(bytes([number]) * (number * 251 % 4000))
        queue.put_many([b"batch %d" % number for number in range(6)])
        for number in range(24):
            queue.put(bytes([number]) * (number * 397 % 5000))
        with queue.consumer() as consumer:
            items = consumer.reserve_many(12, timeout=0)
            consumer.ack_many([items[index] for index in (0, 1, 2, 5, 9)])
            for index in (3, 4, 6, 7, 8, 10, 11):
                items[index].nack()


def strike(path: Path, harm: Harm) -> None:
    """In place, so that the file stays the same one."""
    segments = sorted(file for file in path.iterdir() if file.name.startswith("segment-"))
    victim = segments[harm.segment % len(segments)]
    data = bytearray(victim.read_bytes())
    if not data:  # truncated before
        return
    place = harm.place * len(data) // 65_536
    other = harm.other * len(data) // 65_536
    if harm.kind == "flip":
        data[place] ^= 1 << harm.other % 8
    elif harm.kind == "zero":
        data[place : place + harm.length] = bytes(len(data[place : place + harm.length]))
    elif harm.kind == "copy":
        piece = data[other : other + min(harm.length, len(data) - place)]
        data[place : place + len(piece)] = piece
    elif harm.kind == "truncate":
        del data[place:]
    elif harm.kind == "swap":
        partner = segments[harm.other % len(segments)]
        theirs = partner.read_bytes()
        partner.write_bytes(data)
        data = bytearray(theirs)
    elif len(segments) > 1:
        victim.unlink()
        return
    victim.write_bytes(data)


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "source"
        make(path)
        yield path
        with inspect(path) as view:
            semaphore.unlink(f"/mpq-{view.meta.uuid}")


def drain(path: Path) -> tuple[list[tuple[int, bytes]], int]:
    """What the core delivers, and how many items it counts as lost."""
    found = []
    losses: list[mpqueue.Corrupt] = []
    with (
        mpqueue.Queue(path, create=False) as queue,
        queue.consumer(on_loss=losses.append) as consumer,
    ):
        while (item := consumer.reserve(0)) is not None:
            found.append((item.seq, bytes(item.body)))
            item.ack()
        assert len(queue) == 0
        stats = queue.stats()
        # What opening itself found missing is counted and logged, not handed to the consumer.
        assert stats.lost_items >= sum(loss.lost_items for loss in losses)
    return found, stats.lost_items


@settings(
    max_examples=100,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(harms=st.lists(HARMS, min_size=1, max_size=4), copied=st.booleans())
@example(harms=[Harm("remove", 1, 0, 0, 1)], copied=False)
@example(harms=[Harm("swap", 0, 0, 1, 1)], copied=True)
def test_reader_and_core_agree(source: Path, harms: list[Harm], copied: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "queue"
        if copied:
            shutil.copytree(source, path)
        else:
            make(path)
        try:
            for harm in harms:
                strike(path, harm)
            report = verify(path)
            with inspect(path) as view:
                expected = [(record.seq, record.body) for record in view.items()]
            with mpqueue.Queue(path, create=False) as queue:
                lost_at_open = queue.stats().lost_items
            opened = verify(path).counts
            found, lost = drain(path)
            assert found == expected
            assert opened.damaged + opened.lost == lost - lost_at_open
            assert lost == report.counts.damaged + report.counts.lost
            assert verify(path).counts.depth == 0
        finally:
            if not copied:
                with inspect(path) as view:
                    semaphore.unlink(f"/mpq-{view.meta.uuid}")


def test_the_queue_is_large_enough(source: Path) -> None:
    assert len(list(source.glob("segment-*"))) >= SEGMENTS
    assert layout.SEGMENT_FIRST < 64 * 1024
    assert verify(source).counts.ready == 55


@pytest.mark.parametrize("place", [10, 60], ids=["header", "body"])
@pytest.mark.parametrize("durability", ["none", "group"])
def test_damage_where_an_epoch_begins_costs_that_item_alone(
    spool: Path, durability: str, place: int
) -> None:
    """The seqs that the epoch skipped, a million of them, are nobody's, and nothing waits for them:
    a consumer used to book them as lost, or to stand still before them for ever."""
    with mpqueue.Queue(spool, durability=durability, **SMALL) as queue:
        queue.put(b"before")
    (spool / "control").unlink()
    with mpqueue.Queue(spool, create=False) as queue:
        for number in range(3):
            queue.put(b"%d" % number * 100)
    last = max(spool.glob("segment-*"))
    data = bytearray(last.read_bytes())
    at = layout.SEGMENT_FIRST + place
    data[at : at + 20] = b"\xff" * 20
    last.write_bytes(data)
    assert verify(spool).counts.lost + verify(spool).counts.damaged == 1
    with (
        mpqueue.Queue(spool, create=False) as queue,
        queue.consumer(on_loss=lambda _: None) as consumer,
    ):
        bodies = []
        while (item := consumer.reserve(0)) is not None:
            bodies.append(bytes(item.body)[:6])
            item.ack()
        assert bodies == [b"before", b"1" * 6, b"2" * 6]
        stats = queue.stats()
        assert (stats.depth, stats.lost_items, stats.items_settled) == (0, 1, 4)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_damage_ahead_of_padding_costs_that_item_alone(spool: Path, rebuilt: bool) -> None:
    """A crash tore the third of five items, and recovery put padding in its place; now the header
    of the second fails. The third was settled then: it is not lost once more."""

    def wipe(number: int) -> None:
        (segment,) = spool.glob("segment-*")
        data = bytearray(segment.read_bytes())
        at = layout.SEGMENT_FIRST + number * layout.frame_extent(0, 100)
        data[at : at + 48] = b"\xff" * 48
        segment.write_bytes(data)

    with mpqueue.Queue(spool, durability="none", **SMALL) as queue:
        for number in range(5):
            queue.put(b"%d" % number * 100)
    (spool / "control").unlink()
    wipe(2)
    with mpqueue.Queue(spool, create=False) as queue:
        assert (queue.stats().torn_items, len(queue)) == (1, 4)
    wipe(1)
    if rebuilt:
        (spool / "control").unlink()
    counts = verify(spool).counts
    assert (counts.lost, counts.ready) == (1, 3)
    found, lost = drain(spool)
    assert ([body[:1] for _, body in found], lost) == ([b"0", b"3", b"4"], 1)
