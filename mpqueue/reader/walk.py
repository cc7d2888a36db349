"""The walk over frames: what is an item, what is a gap, what is lost.

Invariants.
W1  An item is a frame whose header hash and body hash hold for this queue, generation and offset,
    and that is not a gap. The state word alone proves nothing.
W2  A frame whose seq is not above the last one met is a leftover and is ignored.
W3  A header that fails is searched past in steps of 32 bytes; the search ends only at an item, at a
    whole gap or at a live claim, or where the padding begins that ends there: what that stands for
    was settled when it was written. So one damaged frame costs itself alone.
W4  Losses are counted by seq, from the frame before to the frame (or segment, or tail) behind, and
    only where bytes between them could not be read. Seqs that are missing between frames that touch
    were settled by a repair, which leaves padding.
W5  While control speaks of this boot the walk ends at its tail; nothing behind it exists.
W6  Otherwise a frame above the durable watermark that is no item may be the leftover of a killed
    claim, its length pointing anywhere: an item that validates inside its extent wins.
W7  A segment goes only when the floor has passed it. So the first segment met is the floor's own;
    where another one is, or its roll record does not hold, the seqs from the floor on are lost.
W8  No search passes the floor, where a frame or recovery's padding begins.
W9  Where control is not believed, what the next open will drop is torn, not lost: by its rules, in
    its order, so that both count alike (rebuild_walk.c). A segment without an item that holds, a
    gap, or a promised one at its beginning is dropped with all that lies in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.closing import Opened, close_up_to
from mpqueue.reader.files import Finding
from mpqueue.reader.frame import LOST, Frame, Source
from mpqueue.reader.segment import Roll, list_segments, open_segment
from mpqueue.reader.segment_walk import SegmentWalk


class Walk:
    """All frames of a queue from one generation on, batches judged, holes filled with losses."""

    def __init__(self, source: Source, first_generation: int, deep: bool) -> None:
        """Looks at the directory now. Raises OSError."""
        names = list_segments(source.directory)
        if source.control is None:
            source = source._replace(rolled=_rolled(source, names))
        self._source = source
        self._deep = deep
        self.segments: list[SegmentSummary] = []
        self.next_seq = 0
        self._expected, self._end, self._epoch = 0, 0, source.meta.epoch  # behind the last frame
        tail = source.control.tail["position"] if source.control is not None else 0
        self._tail = layout.position_parts(tail) if source.control is not None else None
        self.tail_generation = self._tail[0] if self._tail is not None else None
        self._nothing_left, self._floor_position = False, source.acks.floor_position
        self.first_generation = first_generation
        # Of the last byte: a position at offset 0 stands for a segment that is yet to be made.
        end = max(tail, source.durable_position(), 1) - 1
        self.last_generation = layout.position_parts(end)[0]
        self.generations = [
            generation
            for generation in names
            if generation >= first_generation
            and (self._tail is None or generation <= self._tail[0])
        ]

    def __iter__(self) -> Iterator[Frame]:
        """Yields frames by seq; "lost" ones stand where the missing seqs were."""
        owed = 0
        rebuilt = self._source.control is None
        for frame in self._frames_of_rebuild() if rebuilt else self._frames():
            owed += self._unsettled(frame.seq, frame.span)
            yield frame
        yield from self._lost_at_end(owed)

    def _unsettled(self, seq: int, span: int) -> int:
        return sum(not self._source.acks.acked(one) for one in range(seq, seq + span))

    def _frames(self) -> Iterator[Frame]:
        """All but what is missing at the end."""
        expected = -1
        last_seq = -1
        end = 0
        epoch = self._source.meta.epoch
        floor_generation, floor_offset = layout.position_parts(self._source.acks.floor_position)
        for generation in self.generations:
            segment = open_segment(self._source.directory, generation, self._source.meta)
            if segment is None:
                continue
            try:
                roll = segment.roll
                limit = segment.size
                if self._tail is not None and generation == self._tail[0]:
                    limit = self._tail[1]
                inside = generation == floor_generation and floor_offset > layout.SEGMENT_FIRST
                floor_at = floor_offset if inside else 0
                walk = SegmentWalk(self._source, segment, last_seq, floor_at, limit, self._deep)
                walk.epoch = roll.epoch if roll is not None else epoch
                frames = iter(walk)
                first = next(frames, None)
                own = generation == floor_generation and roll is not None
                if expected < 0 and generation >= floor_generation and not own:
                    expected, end = self._from_floor()
                # A roll record binds only if something came after it; the tail says so too.
                if roll is not None and (first is not None or self._tail is not None):
                    epoch = roll.epoch
                    if expected >= 0 and self._cut_short(roll, expected, end):
                        yield from self._lost(
                            expected, roll.previous_seq, end, roll.previous_end, epoch
                        )
                    # Seqs between the two were skipped by a new epoch: nobody ever had them.
                    expected = max(expected, roll.base_seq)
                    end = layout.position(generation, layout.SEGMENT_FIRST)
                if first is not None:
                    headless = roll is None and not inside
                    if 0 <= expected < first.seq and (walk.first_gap or headless):
                        start = first.offset - walk.first_gap
                        yield walk.lost(expected, first.seq, start, first.offset)
                    yield first
                    yield from frames
                    expected = walk.expected
                    end = layout.position(generation, walk.end)
                last_seq = max(last_seq, walk.last_seq)
                self.segments.append(
                    SegmentSummary(generation, segment.name, segment.size, roll, segment.findings)
                )
            finally:
                segment.close()
        if expected < 0:
            expected, end = self._from_floor()
        self._expected, self._end, self._epoch = max(expected, 0), end, epoch

    def _frames_of_rebuild(self) -> Iterator[Frame]:
        """The same where the next open walks as well: it decides what is torn and what is owed."""
        source, epoch = self._source, self._source.meta.epoch
        expected, end = self._floor_of_rebuild()
        self._floor_position = end
        floor_generation, floor_offset = layout.position_parts(end)
        opened: list[Opened] = []
        any_file = False
        met = False
        for generation in self.generations:
            segment = open_segment(source.directory, generation, source.meta)
            if segment is None:
                continue
            try:
                roll = segment.roll
                self.segments.append(
                    SegmentSummary(generation, segment.name, segment.size, roll, segment.findings)
                )
                if segment.size < layout.SEGMENT_FIRST:
                    continue
                inside = generation == floor_generation and floor_offset > layout.SEGMENT_FIRST
                settled = inside or generation < floor_generation
                floor_at = floor_offset if inside else 0
                last_seq = -1 if settled else expected - 1
                walk = SegmentWalk(source, segment, last_seq, floor_at, segment.size, self._deep)
                walk.epoch = roll.epoch if roll is not None else epoch
                frames = iter(walk)
                if generation < floor_generation:
                    yield from frames
                    continue
                any_file |= segment.whole
                first: list[Frame] = []
                while walk.binding < 0 and (frame := next(frames, None)) is not None:
                    first.append(frame)
                if walk.binding >= 0:
                    into = Opened(generation, roll, 0, segment.size, segment.whole, False)
                    closed, expected = close_up_to(
                        source, opened, into, walk.binding, expected, end, met
                    )
                    yield from (frame._replace(epoch=epoch) for frame in closed)
                    opened = []
                    if roll is not None:
                        epoch = roll.epoch
                        # Seqs that a new epoch skipped: nobody ever had them.
                        expected = max(expected, min(roll.base_seq, walk.binding))
                entered = walk.binding >= 0 or inside
                if entered:
                    kept = first if inside else [f for f in first if f.seq >= expected]
                    ahead = walk.first_gap or len(kept) < len(first)
                    if kept and not inside and ahead and expected < kept[0].seq:
                        start = layout.SEGMENT_FIRST
                        yield walk.lost(expected, kept[0].seq, start, kept[0].offset)
                    yield from kept
                    yield from frames
                    expected = max(expected, walk.expected)
                start = floor_at or layout.SEGMENT_FIRST
                if entered and walk.tail > start:
                    met = True
                    end = layout.position(generation, walk.tail)
                tail = walk.tail if entered else start
                padded = walk.padded and walk.tail == tail
                opened.append(Opened(generation, roll, tail, segment.size, segment.whole, padded))
            finally:
                segment.close()
        self._expected, self._end, self._epoch = expected, end, epoch
        self._nothing_left = not met and not any_file

    def _from_floor(self) -> tuple[int, int]:
        """The floor and its position (W7)."""
        return self._source.acks.floor, self._source.acks.floor_position

    def _floor_of_rebuild(self) -> tuple[int, int]:
        """... where no cursor tells of one, what the first file says that it began with."""
        source = self._source
        if source.cursor is not None or not self.generations:
            return self._from_floor()
        generation, floor = self.generations[0], 1
        segment = open_segment(source.directory, generation, source.meta)
        if segment is not None:
            floor = segment.roll.base_seq if segment.roll is not None else floor
            segment.close()
        return floor, layout.position(generation, 0)

    @staticmethod
    def _cut_short(roll: Roll, expected: int, end: int) -> bool:
        return roll.previous_seq > expected and roll.previous_end > end

    def _lost(self, first: int, until: int, start: int, stop: int, epoch: int) -> Iterator[Frame]:
        """The seqs `first` to before `until`, which lay between two positions.

        Without those that the current epoch skipped, which nobody ever had.
        """
        generation, offset = layout.position_parts(start)
        stop_generation, stop_offset = layout.position_parts(stop)
        extent = max(0, stop_offset - offset) if stop_generation == generation else 0
        spans = [(first, until)]
        if self._source.control is not None:
            values = self._source.control.values
            left, right = values["epoch_previous_seq"], values["epoch_first_seq"]
            if left <= right:
                spans = [(first, min(until, left)), (max(first, right), until)]
        for begin, end in spans:
            if begin < end:
                yield Frame(
                    LOST, begin, end - begin, generation, offset, extent, 0, 0, 0, 0, 0, epoch
                )
                extent = 0

    def _lost_at_end(self, owed: int) -> Iterator[Frame]:
        """The seqs that the tail promises and nobody has; after a reboot, as many as are owed by
        the cursor's totals and were not found (`owed` were): numbers do not count across epochs."""
        source = self._source
        expected = self._expected
        self.next_seq = expected
        if source.control is not None:
            promised, until = source.control.tail["next_seq"], source.control.tail["position"]
            self.next_seq = max(expected, promised)
            if until <= self._end:
                return
        else:
            cursor, until = source.cursor, source.durable_position()
            accepted, settled = source.evidence.accepted, source.evidence.settled
            if cursor is not None:
                until = cursor.durable_position
                self.next_seq = max(expected, cursor.next_seq)
                accepted = max(cursor.durable_items, accepted)
                settled = cursor.totals["settled_items"]
            missing = accepted - settled - owed if settled >= 0 else 0
            if missing <= 0 and self._all_taken():
                missing = 1
            expected = promised = max(expected, source.acks.floor)
            while missing > 0:
                missing -= not source.acks.acked(promised)
                promised += 1
        if promised > expected:
            yield from self._lost(expected, promised, self._end, until, self._epoch)

    def _all_taken(self) -> bool:
        """Was a segment made, durably, that neither the cursor has seen nor anybody can see now?
        Nothing says how much it held: one item stands for it."""
        mark = self._source.meta.generation_mark - layout.GENERATION_BLOCK
        position = max(self._source.durable_position(), self._floor_position)
        return self._nothing_left and mark > max(0, layout.position_parts(position)[0])


def _rolled(source: Source, generations: Iterable[int]) -> int:
    """The greatest watermark that a roll record carries; 0 when none does. Raises OSError."""
    best = 0
    for generation in generations:
        segment = open_segment(source.directory, generation, source.meta)
        if segment is not None:
            best = max(best, segment.roll.durable_position if segment.roll is not None else 0)
            segment.close()
    return best


class SegmentSummary(NamedTuple):
    """A segment that the walk went through."""

    generation: int
    name: str
    size: int
    roll: Roll | None
    findings: list[Finding]
