"""`inspect`: items, options, members and numbers of a queue, without joining it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from mpqueue import layout
from mpqueue._begun import refuse_again
from mpqueue.reader.acks import Acks
from mpqueue.reader.control import Control, Liveness, Member, members, read_control
from mpqueue.reader.evidence import read_evidence
from mpqueue.reader.files import Cursor, Finding, Meta, read_cursor, read_meta, xxh64
from mpqueue.reader.frame import CLAIMED, DAMAGED, GAP, ITEM, LOST, TORN, Frame, Source
from mpqueue.reader.segment import open_segment
from mpqueue.reader.walk import Walk


class Record(NamedTuple):
    """One item as it lies in the files.

    `enqueued_at` is wall clock seconds. `state` is "ready", or "settled" when it was acked.
    `attempts` counts hand-outs so far, as far as they were recorded. `generation` and `offset`
    (bytes) say where its frame lies. `extension` has the entries of its frame by type.
    """

    seq: int
    epoch: int
    id: str
    enqueued_at: float
    attempts: int
    headers: dict[str, str]
    body: bytes
    state: str
    generation: int
    offset: int
    extension: Mapping[int, bytes]


class Counts(NamedTuple):
    """A recount from the frames themselves. Bytes are frame extents.

    `depth` counts every seq that is not settled: `ready` items, `gaps`, `claimed` ones that are
    being written, `damaged` and `lost` ones. `settled` counts seqs above the floor.
    `torn` ones were above the durable watermark when the power went and had not been promised: the
    next open drops them, and they are not in `depth`.
    """

    ready: int
    gaps: int
    claimed: int
    damaged: int
    lost: int
    torn: int
    settled: int
    depth: int
    backlog_bytes: int


class Inspection:
    """A read-only view of a queue directory. Use it as a context manager.

    It holds one descriptor, given back by `close`, the end of `with`, or when it is collected.
    `meta`, `control`, `cursor`, `acks` and `options` are a snapshot taken when it was made; items
    are read from the files when they are asked for. On a live queue items may be settled and
    their segments reclaimed meanwhile: they are then left out. `unreadable` is set when `items`
    has come to its end: how many owed items it could not give back.
    """

    def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> None:
        """Raises NotAQueue, FormatError, OSError."""
        refuse_again(self, "source")
        name = os.fsdecode(path)
        if not name:
            raise ValueError("an empty path is no directory of a queue: '.' is the current one")
        self.path = Path(name).absolute()
        self.meta: Meta
        self.findings: list[Finding]
        self.meta, self.findings = read_meta(self.path)
        self._liveness = Liveness(self.path)
        try:
            # In this order: what the cursor says is then older than what control says.
            self.cursor: Cursor | None
            self.cursor, findings = read_cursor(self.path, self.meta)
            self.control: Control | None = read_control(self.path, self.meta)
        except BaseException:
            self._liveness.close()
            raise
        self.findings += findings
        trusted = self.control if self.control is not None and self.control.current else None
        self.acks = Acks(trusted, self.cursor)
        self.unreadable = 0
        self.source = Source(
            directory=self.path,
            meta=self.meta,
            cursor=self.cursor,
            control=trusted,
            liveness=self._liveness,
            acks=self.acks,
            evidence=read_evidence(self.control, self.meta),
        )

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Gives the descriptor back; `members` and walks raise Closed then. Idempotent."""
        self._liveness.close()

    @property
    def trusted(self) -> bool:
        """Whether control speaks of this boot, so that the snapshot is that of a live queue."""
        return self.source.control is not None

    @property
    def options(self) -> Mapping[str, Any]:
        """Options by name as `meta` keeps them; durations in seconds, absent ones None."""
        return self.meta.options

    @property
    def members(self) -> list[Member]:
        """Who is or was attached, with the kernel's word on who lives; empty after a reboot."""
        if self.source.control is None:
            return []
        return list(members(self.source.control, self._liveness))

    @property
    def counters(self) -> dict[str, int]:
        """Lifetime counters: those of control, or after a reboot those that the cursor kept."""
        names: tuple[str, ...] = (
            "delivered_items",
            "redelivered_items",
            "nacked_items",
            "expired_leases",
            "dead_items",
            "loss_events",
            "lost_segments",
        )
        control = self.source.control
        if control is not None:
            result = dict(control.totals)
            result.update({name: control.values[name] for name in names})
            result["enqueued_items"] = control.tail["items"]
            result["enqueued_bytes"] = control.tail["bytes"]
            return result
        if self.cursor is None:
            return {}
        result = dict(self.cursor.totals)
        names += ("full_items", "dropped_items")
        result.update({name: getattr(self.cursor, name) for name in names})
        return result

    def walk(self, *, deep: bool = False, settled: bool = False) -> Walk:
        """The frames from the floor's segment on, or (`settled`) from the oldest file on."""
        first = 0 if settled else layout.position_parts(self.acks.floor_position)[0]
        return Walk(self.source, first, deep)

    def counts(self) -> Counts:
        """Recounts what is owed by walking all headers from the floor on. Raises OSError."""
        tally = Tally(self.acks)
        for frame in self.walk():
            tally.add(frame)
        return tally.counts(self.acks.acked_above_floor())

    def items(self, from_seq: int | None = None, unacked_only: bool = True) -> Iterator[Record]:
        """Whole items by seq, bodies verified; damaged ones are left out (`verify` names them).

        `unacked_only=False` adds items that were settled and still lie in the files.
        Raises OSError.
        """
        segment = None
        uuid = self.meta.uuid
        doubtful: list[Frame] = []
        try:
            for frame in self.walk(settled=not unacked_only):
                if frame.seq < (from_seq or 0):
                    continue
                if frame.kind != ITEM:
                    if frame.kind in (DAMAGED, LOST) and unsettled(frame, self.acks):
                        doubtful.append(frame)
                    continue
                settled = self.acks.acked(frame.seq)
                if settled and unacked_only:
                    continue
                if segment is None or segment.generation != frame.generation:
                    if segment is not None:
                        segment.close()
                    segment = open_segment(self.path, frame.generation, self.meta)
                    if segment is None:
                        continue
                start = frame.offset + layout.FRAME_HEADER
                whole = segment.read(start, frame.ext_length + frame.length)
                seed = layout.header_seed(self.meta.hash_seed, frame.generation, frame.offset)
                stored = int.from_bytes(segment.read(frame.offset + 40, 8), "little")
                if xxh64(whole, (seed + frame.seq * layout.SEED_SEQ) & layout.MASK64) != stored:
                    if not settled:
                        doubtful.append(frame)
                    continue
                entries = extension(whole[: frame.ext_length])
                origin = entries.get(layout.EXT_ORIGIN)
                name = f"{uuid}:{frame.epoch}:{frame.seq}"
                if origin is not None and len(origin) == 32:
                    source, epoch, seq = struct.unpack("<16sQQ", origin)
                    name = f"{source.hex()}:{epoch}:{seq}"
                yield Record(
                    seq=frame.seq,
                    epoch=frame.epoch,
                    id=name,
                    enqueued_at=frame.enqueued_at / 1e9,
                    attempts=self.acks.attempts(frame.seq),
                    headers=headers(entries.get(layout.EXT_HEADERS, b"")),
                    body=whole[frame.ext_length :],
                    state="settled" if settled else "ready",
                    generation=frame.generation,
                    offset=frame.offset,
                    extension=entries,
                )
        finally:
            if segment is not None:
                segment.close()
        self.unreadable = self._still_owed(doubtful)

    def _still_owed(self, frames: list[Frame]) -> int:
        """How many of the seqs of unreadable frames are owed even now: a live queue moves on."""
        if not frames or not self.trusted:
            return sum(unsettled(frame, self.acks) for frame in frames)
        with Inspection(self.path) as later:
            return sum(unsettled(frame, later.acks) for frame in frames)


def inspect(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Inspection:
    """Opens a queue directory for looking only; nothing is written, locked or joined.

    Raises NotAQueue when there is no queue, FormatError when its meta cannot be believed or is of
    a newer format, OSError when files cannot be read.
    """
    return Inspection(path)


class Tally:
    """Adds up what is not settled among frames, one by one."""

    def __init__(self, acks: Acks) -> None:
        """Starts at nothing."""
        self._acks = acks
        self._owed = dict.fromkeys((ITEM, GAP, CLAIMED, DAMAGED, LOST, TORN), 0)
        self.backlog_bytes = 0
        self.settled = 0
        self.epoch = 0

    def add(self, frame: Frame) -> int:
        """Counts a frame; returns how many of its seqs are still owed."""
        self.epoch = frame.epoch
        owed = unsettled(frame, self._acks)
        if owed:
            self._owed[frame.kind] += owed
            self.backlog_bytes += frame.extent if frame.kind != TORN else 0
        else:
            self.settled += frame.span
        return owed

    def settle(self, frame: Frame, owed: int) -> None:
        """Takes back what `add` counted for a frame, of which only `owed` seqs are owed now."""
        before = unsettled(frame, self._acks)
        self._owed[frame.kind] -= before - owed
        if not owed:
            self.backlog_bytes -= frame.extent
            self.settled += frame.span

    def include(self, other: Tally) -> None:
        """Adds the sums of another one."""
        for kind, owed in other._owed.items():
            self._owed[kind] += owed
        self.backlog_bytes += other.backlog_bytes
        self.settled += other.settled

    def counts(self, settled: int) -> Counts:
        """The sums, with the number of settled seqs as the caller knows it."""
        owed = self._owed
        return Counts(
            ready=owed[ITEM],
            gaps=owed[GAP],
            claimed=owed[CLAIMED],
            damaged=owed[DAMAGED],
            lost=owed[LOST],
            torn=owed[TORN],
            settled=settled,
            depth=sum(owed.values()) - owed[TORN],
            backlog_bytes=self.backlog_bytes,
        )


def unsettled(frame: Frame, acks: Acks) -> int:
    """How many of the seqs that a frame stands for are still owed."""
    if frame.span == 1:
        return 0 if acks.acked(frame.seq) else 1
    first = max(frame.seq, acks.floor)
    return sum(not acks.acked(seq) for seq in range(first, frame.seq + frame.span))


def extension(data: bytes) -> dict[int, bytes]:
    """The entries of a frame's extension by type; the first of a type counts, a cut one ends it."""
    entries: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        kind, length = struct.unpack_from("<HH", data, offset)
        if kind == 0 or offset + 4 + length > len(data):
            break
        entries.setdefault(kind, data[offset + 4 : offset + 4 + length])
        offset += (4 + length + 7) & ~7
    return entries


def headers(value: bytes) -> dict[str, str]:
    """User headers of an item."""
    result: dict[str, str] = {}
    offset = 0
    while offset + 4 <= len(value):
        key_length, value_length = struct.unpack_from("<HH", value, offset)
        start = offset + 4
        middle, end = start + key_length, start + key_length + value_length
        if end > len(value):
            break
        key = value[start:middle].decode("utf-8", "replace")
        result[key] = value[middle:end].decode("utf-8", "replace")
        offset = end
    return result
