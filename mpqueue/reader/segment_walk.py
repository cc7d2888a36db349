"""The walk over the frames of one segment. Its invariants, W1 to W9, are told in `walk`."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mpqueue import layout
from mpqueue.reader.files import xxh64
from mpqueue.reader.frame import CLAIMED, DAMAGED, GAP, ITEM, LOST, PAD, TORN, Frame, Source
from mpqueue.reader.segment import SegmentFile

_HEADER = struct.Struct("<QQIHHQQQ")
_SCAN_BYTES = 4 << 20


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
        self._leftovers = source.control is None
        self._floor_at = floor_at
        self._limit = min(limit, segment.size)
        self._deep_from = layout.SEGMENT_FIRST if deep else self._doubted_from()
        self._start = floor_at or layout.SEGMENT_FIRST
        self.last_seq = last_seq
        self.expected = -1
        self.epoch = 0
        self.end = layout.SEGMENT_FIRST
        self.first_gap = 0
        self.frames = 0
        self.binding = -1  # seq of the first frame that proves that the segment was entered
        self.tail = self._start  # behind the last frame from the floor on
        self.padded = False  # whole padding follows there

    def _doubted_from(self) -> int:
        """Offset from which a header proves nothing: a power cut may have taken the body."""
        generation, offset = layout.position_parts(self._source.durable_position())
        if not self._leftovers or self._segment.generation < generation:
            return self._limit
        return offset if self._segment.generation == generation else layout.SEGMENT_FIRST

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
        unpack, hashed, base_seed = _HEADER.unpack_from, xxh64, self._seed
        deep_from = self._deep_from
        codes, mask, per_offset = layout.CODE_OF_BYTE, layout.MASK64, layout.SEED_OFFSET
        data, base, stop = b"", 0, 0
        offset = hole = layout.SEGMENT_FIRST
        floor_at = self._floor_at or limit
        while offset + 48 <= limit:
            if offset >= floor_at:
                if offset > floor_at:  # W8
                    yield from self._missing(self._source.acks.floor, hole, floor_at)
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
                found = self._resync(offset, limit)
                pads, until = self._pads_before(offset + layout.FRAME_ALIGN, found)
                if pads:  # W3
                    yield from self._missing(until, hole, pads)
                    hole = pads
                offset = pads or found or floor_at
                continue
            code = codes[state & 0xFF]
            if flags & layout.FLAG_PAD:
                kind = PAD
            elif code == layout.READY and offset < deep_from:
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
                self.padded |= offset == self.tail
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
            if self._leftovers and offset >= self._start:
                kind = self._met(kind, code, seq, offset)
                self.tail, self.padded = offset + extent, False
            yield Frame(
                kind, seq, 1, generation, offset, extent, length, ext, flags, enqueued_at, state,
                self.epoch,
            )  # fmt: skip
            offset += extent
            self.end = hole = offset

    def _met(self, kind: str, code: int, seq: int, offset: int) -> str:
        """The kind of a frame after a reboot; notes whether it binds the segment."""
        torn = self._source.torn(layout.position(self._segment.generation, offset))
        binds = kind == ITEM or code == layout.GAP
        binds |= kind == DAMAGED and not torn and offset == self._start
        if binds and self.binding < 0:
            self.binding = seq
        if kind == DAMAGED and torn and not self._source.acks.acked(seq):
            return TORN if code == layout.READY else GAP
        return kind

    def _missing(self, until: int, hole: int, end: int) -> Iterator[Frame]:
        """What cannot be read between `hole` and `end`, where `until` is the seq that follows."""
        expected, roll = self.expected, self._segment.roll
        if expected < 0:
            expected = roll.base_seq if roll is not None else until
        if expected < until:
            yield self.lost(expected, until, hole, end)
        self.frames += 1
        self.expected = until
        self.last_seq = max(self.last_seq, until - 1)

    def lost(self, first: int, until: int, start: int, end: int) -> Frame:
        """The seqs from `first` to before `until`, which lay in `start`..`end`."""
        generation = self._segment.generation
        kind = TORN if self._source.torn(layout.position(generation, start)) else LOST
        return Frame(
            kind, first, until - first, generation, start, end - start, 0, 0, 0, 0, 0, self.epoch
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
        """Below the watermark, and while control is believed, a batch is what its first frame is:
        that one is published last."""
        if not batch:
            return batch
        if self._leftovers and batch[0].position >= self._source.durable_position():
            return self._all_or_nothing(batch)
        kinds = {frame.kind for frame in batch}
        verdict = ""
        if batch[0].kind == GAP and batch[0].flags & layout.FLAG_BATCH_FIRST:
            verdict = GAP
        elif CLAIMED in kinds:
            verdict = CLAIMED
        return [frame._replace(kind=verdict) for frame in batch] if verdict else batch

    def _all_or_nothing(self, batch: list[Frame]) -> list[Frame]:
        """Members of a batch that was torn become gaps. One that was settled proves that the
        consumer once saw the batch whole: those behind it stay."""
        result = list(batch)
        acked = self._source.acks.acked
        pending: list[int] = []
        whole, following = False, -1

        def drop() -> None:
            for index in pending:
                result[index] = result[index]._replace(kind=GAP)
            pending.clear()

        for index, frame in enumerate(batch):
            seq, item = frame.seq, frame.kind in (ITEM, DAMAGED)
            first = bool(frame.flags & layout.FLAG_BATCH_FIRST)
            follows = not first and seq == following
            known = not first and ((follows and whole) or acked(seq - 1))
            goes_on = follows and (item or known)
            if not goes_on:
                drop()
                whole = known
            following = -1
            if not (item or known):
                continue
            if acked(seq):
                whole = True
                pending.clear()
            if not whole and item:
                pending.append(index)
            if not goes_on and not first and not whole:  # its beginning is missing
                drop()
                continue
            following = seq + 1
            if frame.flags & layout.FLAG_BATCH_LAST:
                pending.clear()
                following = -1
        drop()
        return result

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

    def _pads_before(self, start: int, end: int) -> tuple[int, int]:
        """Where padding begins that ends exactly at `end`, and its seq; zeros without any."""
        if start >= end:
            return 0, 0
        for place in self._candidates(self._segment.read(start, end - start), end - start):
            first = start + place
            extent, seq = self._pad_at(first, self.last_seq + 1)
            at, more = first + extent, extent
            while more and at < end:
                more, _ = self._pad_at(at, seq)
                at += more
            if extent and at == end:
                return first, seq
        return 0, 0

    def _pad_at(self, offset: int, min_seq: int) -> tuple[int, int]:
        """Extent and seq of whole padding, or zeros."""
        data = self._segment.read(offset, layout.FRAME_HEADER)
        if len(data) < layout.FRAME_HEADER:
            return 0, 0
        values = _HEADER.unpack(data)
        seed = (self._seed + offset * layout.SEED_OFFSET) & layout.MASK64
        pad = values[4] & layout.FLAG_PAD and values[1] >= min_seq
        if not pad or xxh64(data[8:32], seed) != values[6]:
            return 0, 0
        return (layout.FRAME_HEADER + values[3] + values[2] + 31) & ~31, values[1]

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
