"""Builds queue directories byte by byte, from the format's description alone.

It shares nothing with the C core and nothing but the tables with the reader, so that a mistake in
either shows up as a difference. Every image is a plain directory that tests may damage.
"""

from __future__ import annotations

import os
import struct
import uuid
from pathlib import Path
from typing import Any

import xxhash

from mpqueue import layout

MASK = (1 << 64) - 1
SEED = 0x1234_5678_9ABC_DEF0
UUID = uuid.UUID(int=0x00112233445566778899AABBCCDDEEFF)
SEGMENT = 64 * 1024
WINDOW = 64
EPOCH = 1_700_000_000_000_000


def xxh64(data: bytes, seed: int = 0) -> int:
    return xxhash.xxh64(data, seed=seed & MASK).intdigest()


def pack(table: layout.Layout, **values: Any) -> bytearray:
    """A structure with the given fields, everything else zero."""
    data = bytearray(table.size)
    for name, value in values.items():
        field = table.fields[name]
        parts = value if isinstance(value, tuple) else (value,)
        struct.pack_into("<" + field.format, data, field.offset, *parts)
    return data


def checked(table: layout.Layout, **values: Any) -> bytearray:
    """An A/B record of control with its check word."""
    data = pack(table, **values)
    total = 0xC2B2AE3D27D4EB4F
    for index, (word,) in enumerate(struct.iter_unpack("<Q", data[:-8])):
        total = (total + word * (0x9E3779B185EBCA87 + 2 * index)) & MASK
    struct.pack_into("<Q", data, table.size - 8, total)
    return data


def sealed(data: bytearray, seed: int, at: int | None = None) -> bytes:
    """The structure with its hash filled in: of the bytes before `at`, or of all with it zero."""
    end = len(data) - 8 if at is None else at
    covered = bytes(data[:end]) if at is None else bytes(data)
    struct.pack_into("<Q", data, end, xxh64(covered, seed))
    return bytes(data)


def entry(kind: int, value: bytes) -> bytes:
    raw = struct.pack("<HH", kind, len(value)) + value
    return raw + bytes(-len(raw) % 8)


def headers_entry(headers: dict[str, str]) -> bytes:
    value = b""
    for key, text in headers.items():
        value += struct.pack("<HH", len(key), len(text)) + key.encode() + text.encode()
    return entry(layout.EXT_HEADERS, value)


class Segment:
    """One segment under construction; `put` returns the offset of the frame."""

    def __init__(self, generation: int, base_seq: int, size: int = SEGMENT) -> None:
        self.generation = generation
        self.data = bytearray(size)
        self.offset = layout.SEGMENT_FIRST
        self.base_seq = base_seq
        self.next_seq = base_seq
        self.roll: dict[str, int] = {
            "base_seq": base_seq,
            "epoch": EPOCH,
            "previous_seq": base_seq,
        }

    def put(
        self,
        body: bytes,
        *,
        code: int = layout.READY,
        incarnation: int = 7,
        flags: int = 0,
        ext: bytes = b"",
        seq: int | None = None,
        good_body: bool = True,
        enqueued_at: int = 1_700_000_000_000_000_000,
    ) -> int:
        if seq is None:
            seq = self.next_seq
        offset = self.offset
        seed = (
            SEED + self.generation * layout.SEED_GENERATION + offset * layout.SEED_OFFSET
        ) & MASK
        covered = struct.pack("<QIHHQ", seq, len(body), len(ext), flags, enqueued_at)
        whole = ext + body
        body_hash = xxh64(whole, seed + seq * layout.SEED_SEQ)
        frame = struct.pack("<Q", incarnation << 8 | code) + covered
        frame += struct.pack("<QQ", xxh64(covered, seed), body_hash if good_body else body_hash ^ 6)
        frame += whole
        self.data[offset : offset + len(frame)] = frame
        self.offset += layout.frame_extent(len(ext), len(body))
        if not flags & layout.FLAG_PAD:
            self.next_seq = seq + 1
        return offset

    def pad(self) -> int:
        """Fills the rest with a PAD frame."""
        room = len(self.data) - self.offset
        if room < layout.FRAME_HEADER:
            return self.offset
        return self.put(bytes(room - 48), code=layout.PAD, flags=layout.FLAG_PAD)

    @property
    def end(self) -> int:
        return layout.position(self.generation, self.offset)

    def bytes(self, damaged_rolls: str = "") -> bytes:
        static = sealed(
            pack(
                layout.SEGMENT_HEADER,
                magic=layout.SEGMENT_MAGIC,
                version=1,
                first_offset=layout.SEGMENT_FIRST,
                uuid=UUID.bytes,
                generation=self.generation,
                bytes=len(self.data),
            ),
            SEED,
        )
        roll = sealed(
            pack(
                layout.ROLL,
                magic=layout.ROLL_MAGIC,
                generation=self.generation,
                **self.roll,
            ),
            SEED + self.generation * layout.SEED_GENERATION,
        )
        for at, part in (
            (layout.SEGMENT_HEADER_A, static),
            (layout.SEGMENT_HEADER_B, static),
            (layout.SEGMENT_ROLL_A, roll),
            (layout.SEGMENT_ROLL_B, roll),
        ):
            self.data[at : at + len(part)] = part
        return bytes(self.data)


class Image:
    """A queue directory; call `write` after filling in segments and what was acked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[Segment] = []
        self.acked: set[int] = set()
        self.floor = 1
        self.floor_position = layout.position(1, layout.SEGMENT_FIRST)
        self.durable_position = 0
        self.attempts: dict[int, int] = {}
        self.cursor_next_seq = 0
        self.durable_items = 0
        self.meta: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self.control: dict[str, int] | None = None

    def segment(self, size: int = SEGMENT, skip: int = 0) -> Segment:
        """Starts the next segment; `skip` seqs are jumped over by a new epoch."""
        if not self.segments:
            made = Segment(1, 1, size)
        else:
            last = self.segments[-1]
            made = Segment(last.generation + 1, last.next_seq + skip, size)
            made.roll["previous_seq"] = last.next_seq
            made.roll["previous_end"] = last.end
        self.segments.append(made)
        return made

    def live(self, **values: int) -> None:
        """Adds a control file of this boot whose tail is the end of the newest segment."""
        self.control = values

    def write(self) -> Path:
        self.path.mkdir(exist_ok=True)
        for segment in self.segments:
            name = f"segment-{segment.generation:012d}"
            (self.path / name).write_bytes(segment.bytes())
        (self.path / "meta").write_bytes(bytes(2 * layout.PAGE))
        stat = (self.path / "meta").stat()
        slots = [self._meta(number, stat) for number in (2, 1)]
        with (self.path / "meta").open("r+b") as file:
            file.write(b"".join(slots))
        (self.path / "cursor").write_bytes(self._cursor(4) + self._cursor(3))
        if self.control is not None:
            (self.path / "control").write_bytes(self._control(stat))
        return self.path

    def _meta(self, number: int, stat: os.stat_result) -> bytes:
        options = pack(
            layout.OPTIONS,
            segment_size=SEGMENT,
            max_segments=8,
            keep_segments=2,
            max_item=1 << 20,
            ack_window=WINDOW,
            max_members=4,
            durability=2,
            interval_items=1000,
            interval_ns=100_000_000,
        )
        values: dict[str, Any] = {
            "magic": layout.META_MAGIC,
            "version": 1,
            "slot_bytes": layout.PAGE,
            "number": number,
            "uuid": UUID.bytes,
            "hash_seed": SEED,
            "epoch": EPOCH,
            "seq_mark": 1 << 20,
            "generation_mark": 1 << 10,
            "inode": stat.st_ino,
            "device": stat.st_dev,
            "options": bytes(options),
        }
        return sealed(pack(layout.META_SLOT, **{**values, **self.meta}), 0)

    def _cursor(self, number: int) -> bytes:
        size = layout.cursor_slot_bytes(WINDOW)
        slot = bytearray(size)
        slot[:512] = pack(
            layout.CURSOR_SLOT,
            magic=layout.CURSOR_MAGIC,
            version=1,
            slot_bytes=size,
            number=number,
            uuid=UUID.bytes,
            floor=self.floor,
            floor_position=self.floor_position,
            next_seq=self.cursor_next_seq,
            durable_position=self.durable_position,
            epoch=EPOCH,
            totals=bytes(pack(layout.TOTALS, **self.totals)),
            attempts_count=len(self.attempts),
            claimed_items=self.durable_items,
            durable_items=self.durable_items,
            window=WINDOW,
        )
        for seq in self.acked:
            bit = seq - (self.floor & ~31)
            slot[512 + bit // 8] |= 1 << (bit % 8)
        at = 512 + WINDOW // 8
        for seq, count in self.attempts.items():
            slot[at : at + 16] = struct.pack("<QII", seq, count, 0)
            at += 16
        return sealed(slot, SEED, layout.CURSOR_SLOT.offset("hash"))

    def _control(self, stat: os.stat_result) -> bytes:
        assert self.control is not None
        members_at = 4096
        ring_at = members_at + 4 * layout.MEMBER.size
        window_at = ring_at + layout.RING * layout.RING_ENTRY.size
        attempts_at = window_at + WINDOW // 32 * layout.WINDOW_WORD.size
        total = attempts_at + 8 * WINDOW
        last = self.segments[-1]
        data = bytearray(total)
        tail = checked(
            layout.TAIL,
            position=last.end,
            next_seq=last.next_seq,
            items=last.next_seq - 1,
        )
        settled = self.floor - 1 + len([seq for seq in self.acked if seq >= self.floor])
        settled += self.totals.get("lost_items", 0)
        record = checked(
            layout.CONSUMER_RECORD,
            floor=self.floor,
            floor_position=self.floor_position,
            totals=(settled, 0, settled, 0, 0, 0, 0, 0),
        )
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        values: dict[str, Any] = {
            "magic": layout.CONTROL_MAGIC,
            "version": 1,
            "ring_entries": layout.RING,
            "uuid": UUID.bytes,
            "meta_inode": stat.st_ino,
            "meta_device": stat.st_dev,
            "boot_id": boot,
            "epoch": EPOCH,
            "hash_seed": SEED,
            "segment_size": SEGMENT,
            "ack_window": WINDOW,
            "max_members": 4,
            "members_offset": members_at,
            "ring_offset": ring_at,
            "window_offset": window_at,
            "attempts_offset": attempts_at,
            "total_bytes": total,
            "tail_select": 1,
            "tail": bytes(layout.TAIL.size) + bytes(tail),
            "consumer_select": 0,
            "consumer_record": bytes(record) + bytes(layout.CONSUMER_RECORD.size),
            "durable_position": self.durable_position,
        }
        head = pack(layout.CONTROL, **{**values, **self.control})
        at = layout.CONTROL.offset("identity_hash")
        struct.pack_into("<Q", head, at, xxh64(bytes(head[:at])))
        data[: len(head)] = head
        words: dict[int, int] = {}
        for seq in self.acked:
            words[seq >> 5] = words.get(seq >> 5, 0) | 1 << (seq & 31)
        for index, bits in words.items():
            value = index << 32 | bits
            place = window_at + index % (WINDOW // 32) * 16
            data[place : place + 16] = struct.pack("<QQ", value, value ^ MASK)
        return bytes(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flips one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
