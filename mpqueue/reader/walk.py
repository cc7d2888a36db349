"""The walk over frames: what is an item, what is a gap, what is lost.

Invariants.
W1  An item is a frame whose header hash and body hash hold for this queue, generation and offset,
    and that is not a gap. The state word alone proves nothing.
W2  A frame whose seq is not above the last one met is a leftover and is ignored.
W3  A header that fails is searched past in steps of 32 bytes; the search ends only at an item, at a
    whole gap or at a live claim. So one damaged frame costs itself alone.
W4  Losses are counted by seq, from the frame before to the frame (or segment, or tail) behind, and
    only where bytes between them could not be read. Seqs that are missing between frames that touch
    were settled by a repair, which leaves padding.
W5  While control speaks of this boot the walk ends at its tail; nothing behind it exists.
W6  Otherwise a frame above the durable watermark that is no item may be the leftover of a killed
    claim, its length pointing anywhere: an item that validates inside its extent wins.
W7  A segment goes only when the floor has passed it. So the first segment met is the floor's own;
    where another one is, or its roll record does not hold, the seqs from the floor on are lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.acks import Acks
from mpqueue.reader.control import Control, Liveness
from mpqueue.reader.files import Cursor, Finding, Meta, xxh64
from mpqueue.reader.segment import Roll, SegmentFile, list_segments, open_segment

_HEADER = struct.Struct("<QQIHHQQQ")
_SCAN_BYTES = 4 << 20

ITEM = "item"
GAP = "gap"
CLAIMED = "claimed"
DAMAGED = "damaged"
LOST = "lost"
PAD = "pad"


class Frame(NamedTuple):
    """One frame met by the walk, or (kind "lost") a hole of `span` seqs from `seq` on.

    "claimed" is being written by a living producer. "damaged" has a whole header and a body that
    fails its hash. Bytes: `extent` from `offset`.
    """

    kind: str
    seq: int
    span: int
    generation: int
    offset: int
    extent: int
    length: int
    ext_length: int
    flags: int
    enqueued_at: int
    state: int
    epoch: int

    @property
    def position(self) -> int:
        """Ordered place in the queue."""
        return layout.position(self.generation, self.offset)


class Source(NamedTuple):
    """Everything that a walk looks at. `control` is None where it must not be believed."""

    directory: Path
    meta: Meta
    cursor: Cursor | None
    control: Control | None
    liveness: Liveness
    acks: Acks

    def durable_position(self) -> int:
        """The durable watermark, as far as it was persisted or is shared now."""
        if self.control is not None:
            return int(self.control.values["durable_position"])
        return self.cursor.durable_position if self.cursor is not None else 0


class SegmentWalk:
    """The frames of one segment in order, batches judged, holes filled with losses."""

    def __init__(
        self,
        source: Source,
        segment: SegmentFile,
        last_seq: int,
        floor_at: int,
        limit: int,
        deep: bool,
    ) -> None:
        """Frames count above `last_seq` and below offset `limit`; `deep` hashes every body. The
        floor lies at offset `floor_at`; 0 when it is not within this segment.

        `expected` is the seq that must come next, -1 before the first frame: what is missing
        ahead of that one is the caller's to say.
        """
        self._source = source
        self._segment = segment
        self._seed = source.meta.hash_seed + segment.generation * layout.SEED_GENERATION
        self._deep = deep
        self._leftovers = source.control is None
        self._floor_at = floor_at
        self._limit = min(limit, segment.size)
        self.last_seq = last_seq
        self.expected = -1
        self.epoch = 0
        self.end = layout.SEGMENT_FIRST
        self.first_gap = 0
        self.frames = 0

    def __iter__(self) -> Iterator[Frame]:
        """Yields frames; after the walk `end` is the offset behind the last one."""
        batch: list[Frame] = []
        for frame in self._frames():
            if batch and (
                frame.flags & layout.FLAG_BATCH_FIRST
                or not frame.flags & layout.FLAG_BATCH
                or frame.seq != batch[-1].seq + 1
            ):
                yield from self._judged(batch)
                batch = []
            if not frame.flags & layout.FLAG_BATCH:
                yield frame
                continue
            batch.append(frame)
            if frame.flags & layout.FLAG_BATCH_LAST:
                yield from self._judged(batch)
                batch = []
        yield from self._judged(batch)

    def _frames(self) -> Iterator[Frame]:
        """The hot loop: everything in it is local, and only what is odd leaves it."""
        segment, generation, size, limit = (
            self._segment,
            self._segment.generation,
            self._segment.size,
            self._limit,
        )
        unpack, hashed, deep, base_seed = _HEADER.unpack_from, xxh64, self._deep, self._seed
        codes, mask, per_offset = layout.CODE_OF_BYTE, layout.MASK64, layout.SEED_OFFSET
        data, base, stop = b"", 0, 0
        offset = hole = layout.SEGMENT_FIRST
        floor_at = self._floor_at or limit
        while offset + 48 <= limit:
            if offset >= floor_at:
                if offset > floor_at:  # W8
                    yield from self._below_floor(hole)
                    offset = hole = floor_at
                floor_at = limit
            if offset + 48 > stop or offset < base:
                data, base = segment.window(offset, 48)
                stop = base + len(data)
                if offset + 48 > stop:
                    return
            at = offset - base
            values = unpack(data, at)
            state, seq, length, ext, flags, enqueued_at, header_hash, body_hash = values
            seed = (base_seed + offset * per_offset) & mask
            good = hashed(data[at + 8 : at + 32], seed) == header_hash
            if not good:
                healed = self._healed(data[at + 8 : at + 32], values, seed)
                if healed is not None:
                    state, seq, length, ext, flags, enqueued_at, header_hash, body_hash = healed
                    values, good = healed, True
            extent = (48 + ext + length + 31) & ~31
            likely = self.last_seq < seq <= layout.SEQ_MAX and offset + extent <= size
            if not good or not likely:
                offset = self._resync(offset, limit) or floor_at
                continue
            code = codes[state & 0xFF]
            if flags & layout.FLAG_PAD:
                kind = PAD
            elif code == layout.READY and not deep:
                kind = ITEM
            elif code == layout.READY and offset + extent <= stop:
                body = data[at + 48 : at + 48 + ext + length]
                whole = hashed(body, (seed + seq * layout.SEED_SEQ) & mask) == body_hash
                kind = ITEM if whole else DAMAGED
            else:
                kind = self._kind(offset, values)
                stop = 0
            if kind != ITEM and self._leftovers and code != layout.GAP:
                inner = self._inside(offset, extent)
                if inner:
                    offset = inner
                    continue
            if kind == PAD:
                offset += extent
                self.end = hole = offset
                continue
            if hole != offset and self.frames == 0:
                self.first_gap = offset - hole
            self.frames += 1
            if 0 <= self.expected < seq and hole != offset:
                yield self.lost(self.expected, seq, hole, offset)
            self.expected = seq + 1
            self.last_seq = seq
            yield Frame(
                kind, seq, 1, generation, offset, extent, length, ext, flags, enqueued_at, state,
                self.epoch,
            )  # fmt: skip
            offset += extent
            self.end = hole = offset

    def _below_floor(self, hole: int) -> Iterator[Frame]:
        """What was settled and cannot be read between `hole` and the floor."""
        floor, roll = self._source.acks.floor, self._segment.roll
        expected = self.expected
        if expected < 0:
            expected = roll.base_seq if roll is not None else floor
        if expected < floor:
            yield self.lost(expected, floor, hole, self._floor_at)
        self.frames += 1
        self.expected = floor
        self.last_seq = max(self.last_seq, floor - 1)

    def lost(self, first: int, until: int, start: int, end: int) -> Frame:
        """The seqs from `first` to before `until`, which lay in `start`..`end`."""
        generation = self._segment.generation
        return Frame(
            LOST, first, until - first, generation, start, end - start, 0, 0, 0, 0, 0, self.epoch
        )

    @staticmethod
    def _healed(covered: bytes, values: tuple[int, ...], seed: int) -> tuple[int, ...] | None:
        """The header with its one flipped bit undone, or None if it has more than one."""
        if not any(covered):
            return None
        if (xxh64(covered, seed) ^ values[6]).bit_count() == 1:
            return values
        number = int.from_bytes(covered, "little")
        for bit in range(8 * len(covered)):
            candidate = (number ^ (1 << bit)).to_bytes(len(covered), "little")
            if xxh64(candidate, seed) == values[6]:
                return (values[0], *struct.unpack("<QIHHQ", candidate), values[6], values[7])
        return None

    def _kind(self, offset: int, values: tuple[int, ...]) -> str:
        """What a frame with a whole header is, when its state does not decide it."""
        body_hash = values[7]
        code = layout.CODE_OF_BYTE[values[0] & 0xFF]
        if code == layout.GAP:
            return GAP
        if code == layout.CLAIMED and self._source.control is not None:
            if self._source.liveness.alive(values[0] >> 8):
                return CLAIMED
            # Its owner may have published and left since the bytes were read.
            self._segment.forget()
            fresh = self._segment.read(offset, 8)
            if layout.CODE_OF_BYTE[fresh[0]] in (layout.CLAIMED, layout.GAP):
                return GAP
            body_hash = int.from_bytes(self._segment.read(offset + 40, 8), "little")
        if self._body_holds(offset, values, body_hash):
            return ITEM
        return GAP if code == layout.CLAIMED else DAMAGED

    def _body_holds(self, offset: int, values: tuple[int, ...], body_hash: int) -> bool:
        body = self._segment.read(offset + layout.FRAME_HEADER, values[3] + values[2])
        seed = self._seed + offset * layout.SEED_OFFSET + values[1] * layout.SEED_SEQ
        return xxh64(body, seed & layout.MASK64) == body_hash

    def _judged(self, batch: list[Frame]) -> list[Frame]:
        """A batch is dropped whole if a member became a gap; see the module's text for the rest."""
        if not batch:
            return batch
        kinds = {frame.kind for frame in batch}
        first, last = batch[0], batch[-1]
        whole = first.flags & layout.FLAG_BATCH_FIRST and last.flags & layout.FLAG_BATCH_LAST
        durable = first.position < self._source.durable_position()
        verdict = ""
        if GAP in kinds:
            verdict = GAP
        elif CLAIMED in kinds:
            verdict = CLAIMED
        elif self._leftovers and not durable and (not whole or DAMAGED in kinds):
            # A member that was acked proves that the consumer once saw the batch whole.
            seen = any(self._source.acks.acked(frame.seq) for frame in batch)
            verdict = "" if seen else GAP
        return [frame._replace(kind=verdict) for frame in batch] if verdict else batch

    def _inside(self, offset: int, extent: int) -> int:
        """Offset of an item that validates inside a frame that is none, or 0 (W6)."""
        if layout.position(self._segment.generation, offset) < self._source.durable_position():
            return 0
        return self._resync(offset, offset + extent)

    def _resync(self, offset: int, limit: int) -> int:
        """Offset of the next frame that ends a search (W3), or 0 when there is none."""
        offset += layout.FRAME_ALIGN
        while offset + layout.FRAME_HEADER <= limit:
            stop = min(offset + _SCAN_BYTES, limit)
            # The last header of a chunk may reach into the next one.
            data = self._segment.read(offset, stop - offset + layout.FRAME_HEADER)
            for at in self._candidates(data, stop - offset):
                if self._ends_search(offset + at):
                    return offset + at
            offset = stop
        return 0

    def _candidates(self, data: bytes, length: int) -> Iterator[int]:
        """Places where a header could lie: seq above the last, extent within the segment."""
        if data.count(0) == len(data):
            return
        import numpy

        usable = len(data) - len(data) % 8
        words = numpy.frombuffer(data[:usable], dtype="<u8")
        count = min((length + 31) // 32, (len(words) - 6) // 4 + 1)
        if count <= 0:
            return
        seqs = words[1::4][:count]
        sizes = words[2::4][:count]
        mark = max(self._source.meta.seq_mark, self.last_seq + 1)
        total = (sizes & 0xFFFFFFFF) + ((sizes >> 32) & 0xFFFF)
        fits = (
            (seqs > numpy.uint64(max(self.last_seq, 0)))
            if self.last_seq >= 0
            else numpy.ones(count, dtype=bool)
        )
        fits &= (seqs <= numpy.uint64(mark)) & (total < numpy.uint64(self._segment.size))
        for index in numpy.nonzero(fits)[0]:
            yield int(index) * 32

    def _ends_search(self, offset: int) -> bool:
        data = self._segment.read(offset, layout.FRAME_HEADER)
        if len(data) < layout.FRAME_HEADER:
            return False
        values: tuple[int, ...] = _HEADER.unpack(data)
        seed = (self._seed + offset * layout.SEED_OFFSET) & layout.MASK64
        if xxh64(data[8:32], seed) != values[6] or values[4] & layout.FLAG_PAD:
            return False
        if values[1] <= self.last_seq:
            return False
        code = layout.CODE_OF_BYTE[values[0] & 0xFF]
        if code == layout.GAP:
            return True
        if code == layout.CLAIMED and self._source.control is not None:
            return self._source.liveness.alive(values[0] >> 8)
        return self._body_holds(offset, values, values[7])


class Walk:
    """All frames of a queue from one generation on, batches judged, holes filled with losses."""

    def __init__(self, source: Source, first_generation: int, deep: bool) -> None:
        """Looks at the directory now. Raises OSError."""
        self._source = source
        self._deep = deep
        self.segments: list[SegmentSummary] = []
        self.next_seq = 0
        self._expected, self._end, self._epoch = 0, 0, source.meta.epoch  # behind the last frame
        tail = source.control.tail["position"] if source.control is not None else 0
        self._tail = layout.position_parts(tail) if source.control is not None else None
        self.first_generation = first_generation
        # Of the last byte: a position at offset 0 stands for a segment that is yet to be made.
        end = max(tail, source.durable_position(), 1) - 1
        self.last_generation = layout.position_parts(end)[0]
        names = list_segments(source.directory)
        self.generations = [
            generation
            for generation in names
            if generation >= first_generation
            and (self._tail is None or generation <= self._tail[0])
        ]

    def __iter__(self) -> Iterator[Frame]:
        """Yields frames by seq; "lost" ones stand where the missing seqs were."""
        owed = 0
        for frame in self._frames():
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

    def _from_floor(self) -> tuple[int, int]:
        """The floor and its position (W7); -1 where neither control nor cursor tells of one."""
        source = self._source
        if source.control is None and source.cursor is None:
            return -1, 0
        return source.acks.floor, source.acks.floor_position

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
        elif source.cursor is not None:
            cursor, until = source.cursor, source.cursor.durable_position
            self.next_seq = max(expected, cursor.next_seq)
            missing = cursor.durable_items - cursor.totals["settled_items"] - owed
            expected = promised = max(expected, source.acks.floor)
            while missing > 0:
                missing -= not source.acks.acked(promised)
                promised += 1
        else:
            return
        if promised > expected:
            yield from self._lost(expected, promised, self._end, until, self._epoch)


class SegmentSummary(NamedTuple):
    """A segment that the walk went through."""

    generation: int
    name: str
    size: int
    roll: Roll | None
    findings: list[Finding]
