"""The bytes of a queue directory, as tables: a mirror of `native/layout.h` in plain Python.

Owns the names, offsets and constants of on-disk format version 1 that the independent reader
uses. It never touches a file. A test compiles `layout.h` and compares every offset and size, so
that the two cannot drift apart.

A `Layout` is written as one string of `name:format` words, where a format is that of the `struct`
module without byte order: `Q` u64, `I` u32, `H` u16, `16s` raw bytes, `8Q` an array. Fields lie at
their natural alignment; a leading `~` moves a field to the next 128-byte line.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

FORMAT_VERSION: Final = 1
PAGE: Final = 4096
LINE: Final = 128

META_MAGIC: Final = 0x3154454D2D51504D
CONTROL_MAGIC: Final = 0x314C54432D51504D
CURSOR_MAGIC: Final = 0x315255432D51504D
SEGMENT_MAGIC: Final = 0x314745532D51504D
ROLL_MAGIC: Final = 0x314C4F522D51504D

BYTE_GATE: Final = 1 << 61
BYTE_CONSUMER: Final = (1 << 61) + 1
BYTE_META: Final = (1 << 61) + 2
BYTE_MEMBERS: Final = 1 << 62
BYTE_VIEWS: Final = 1 << 61

FREE: Final = 0x00
CLAIMED: Final = 0x0F
READY: Final = 0x33
GAP: Final = 0x55
PAD: Final = 0x66
CODES: Final = (FREE, CLAIMED, READY, GAP, PAD)

FRAME_ALIGN: Final = 32
FRAME_HEADER: Final = 48

FLAG_PAD: Final = 0x0001
FLAG_BATCH: Final = 0x0002
FLAG_BATCH_FIRST: Final = 0x0004
FLAG_BATCH_LAST: Final = 0x0008

SEED_GENERATION: Final = 0x9E3779B185EBCA87
SEED_OFFSET: Final = 0xC2B2AE3D27D4EB4F
SEQ_MAX: Final = (1 << 64) // 4 - 1  # nothing above it was written by a queue
SEED_SEQ: Final = 0x165667B19E3779F9
MASK64: Final = (1 << 64) - 1

EXT_NOT_BEFORE: Final = 1
EXT_ATTEMPTS: Final = 2
EXT_ORIGIN: Final = 3
EXT_KEY: Final = 4
EXT_HEADERS: Final = 5
EXT_CONTENT_TYPE: Final = 6
EXT_CODEC: Final = 7
EXT_REASON: Final = 8
EXT_HISTORY: Final = 9

SEGMENT_HEADER_A: Final = 0
SEGMENT_HEADER_B: Final = 4096
SEGMENT_ROLL_A: Final = 8192
SEGMENT_ROLL_B: Final = 12288
SEGMENT_FIRST: Final = 16384
POSITION_BITS: Final = 27
GENERATION_BLOCK: Final = 1024

DURABILITY_NAMES: Final = ("none", "interval", "group", "sync")
STAGE_NAMES: Final = ("", "segment", "cursor", "meta", "directory", "keys")
BACKOFF_MAX: Final = 16
KEYS: Final = 16

BATCH_MAX: Final = 4096
"""Items of one claim at most."""

CURSOR_HEADER: Final = 512
CURSOR_ATTEMPTS: Final = 224

RING: Final = 16384
RING_EMPTY: Final = 0x00
RING_PREPARING: Final = 0x0F
RING_PREPARED: Final = 0x33
RING_KEPT: Final = 0x55
HISTOGRAM: Final = 20

ROLE_PRODUCER: Final = 1
ROLE_CONSUMER: Final = 2

CODE_OF_BYTE: Final = tuple(
    next((code for code in CODES if (byte ^ code).bit_count() <= 1), -1) for byte in range(256)
)
"""State code that a byte stands for: the nearest code word at a distance of at most 1, else -1."""


class Field(NamedTuple):
    """One field: its `struct` format without byte order, and where it lies (bytes)."""

    name: str
    format: str
    offset: int
    size: int
    repeat: int


class Layout:
    """One structure: where its fields lie, and how its bytes are read."""

    def __init__(self, name: str, size: int, text: str) -> None:
        """`size` is what C says; a table that does not fill it exactly is a programming error."""
        self.name = name
        self.size = size
        self.fields: dict[str, Field] = {}
        offset = 0
        codes = ["<"]
        for word in text.split():
            field, _, form = word.partition(":")
            match = re.fullmatch(r"(\d*)([QIHsB])", form)
            if match is None:
                raise ValueError(f"{name}: {word!r} is not name:format")
            unit = struct.calcsize("<" + match[2])
            align = LINE if field.startswith("~") else unit
            gap = -offset % align
            if gap:
                codes.append(f"{gap}x")
            offset += gap
            length = struct.calcsize("<" + form)
            key = field.lstrip("~")
            repeat = int(match[1]) if match[1] and match[2] != "s" else 0
            self.fields[key] = Field(key, form, offset, length, repeat)
            codes.append(form)
            offset += length
        if offset > size:
            raise ValueError(f"{name}: fields end at {offset}, beyond {size}")
        codes.append(f"{size - offset}x")
        self._struct = struct.Struct("".join(codes))

    def offset(self, field: str) -> int:
        """Offset of a field from the start of the structure, in bytes."""
        return self.fields[field].offset

    def unpack(self, data: bytes | memoryview, offset: int = 0) -> dict[str, Any]:
        """Reads the structure at `offset`: integers, bytes, and tuples for arrays of integers.

        Raises `struct.error` when fewer than `size` bytes are there.
        """
        values = iter(self._struct.unpack_from(data, offset))
        result: dict[str, Any] = {}
        for field in self.fields.values():
            if field.repeat:
                result[field.name] = tuple(next(values) for _ in range(field.repeat))
            else:
                result[field.name] = next(values)
        return result


FRAME = Layout(
    "mpq_frame",
    48,
    "state:Q seq:Q length:I ext_length:H flags:H enqueued_at:Q header_hash:Q body_hash:Q",
)

SEGMENT_HEADER = Layout(
    "mpq_segment_header",
    128,
    "magic:Q version:I first_offset:I uuid:16s generation:Q bytes:Q reserved:9Q hash:Q",
)

ROLL = Layout(
    "mpq_roll",
    128,
    "magic:Q generation:Q base_seq:Q epoch:Q previous_end:Q previous_seq:Q durable_position:Q "
    "entered_at:Q reserved:7Q hash:Q",
)

OPTIONS = Layout(
    "mpq_options",
    400,
    "segment_size:Q capacity:Q max_bytes:Q max_item:Q interval_ns:Q ack_linger_ns:Q retain_ns:Q "
    "lease_timeout_ns:Q dead_retain_ns:Q max_segments:I keep_segments:I interval_items:I "
    "ack_window:I max_members:I durability:I max_attempts:I backoff_count:I backoff_ns:16Q "
    "file_mode:I key_window:I codec:32s reserved:16Q",
)

KEY = Layout("mpq_key", 32, "id:I reserved:I since:Q check:16s")

META_SLOT = Layout(
    "mpq_meta_slot",
    4096,
    "magic:Q version:I slot_bytes:I number:Q uuid:16s hash_seed:Q created_at:Q epoch:Q seq_mark:Q "
    "generation_mark:Q inode:Q device:Q poison_errno:I poison_stage:I sealed:I reserved0:I "
    "options:400s reserved:1536s keys_count:I reserved1:I keys:512s reserved2:1520s hash:Q",
)

CURSOR_ATTEMPT = Layout("mpq_cursor_attempt", 16, "seq:Q attempts:I reserved:I")

TOTALS_FIELDS: Final = (
    "settled_items",
    "settled_bytes",
    "acked_items",
    "gap_items",
    "lost_items",
    "lost_bytes",
    "skipped_items",
    "torn_items",
)
TOTALS = Layout("mpq_totals", 64, " ".join(f"{name}:Q" for name in TOTALS_FIELDS))

CURSOR_SLOT = Layout(
    "mpq_cursor_slot",
    512,
    "magic:Q version:I slot_bytes:I number:Q uuid:16s floor:Q floor_position:Q next_seq:Q "
    "durable_position:Q epoch:Q written_at:Q totals:64s delivered_items:Q redelivered_items:Q "
    "nacked_items:Q loss_events:Q attempts_count:I window:I claimed_items:Q "
    "claimed_bytes:Q durable_items:Q recoveries:Q lost_segments:Q full_items:Q "
    "dropped_items:Q expired_leases:Q dead_items:Q reserved:30Q hash:Q",
)

KEY_SAVED = Layout("mpq_key_saved", 32, "hash:2Q seq:Q check:Q")
KEY_SLOT = Layout("mpq_key_slot", 40, "hash:2Q seq:Q position:Q previous:Q")
KEY_RING = Layout("mpq_key_ring", 128, "count:Q saved:Q damaged:Q reserved:13Q")

RING_ENTRY = Layout("mpq_ring_entry", 32, "state:Q generation:Q bytes:Q freed_at:Q")
TAIL = Layout("mpq_tail", 48, "position:Q next_seq:Q items:Q bytes:Q scheduled:Q check:Q")
CONSUMER_RECORD = Layout(
    "mpq_consumer_record",
    128,
    "floor:Q floor_position:Q word_index:Q word_value:Q scheduled:Q reserved:2Q totals:8Q check:Q",
)
WINDOW_WORD = Layout("mpq_window_word", 16, "value:Q complement:Q")

MEMBER = Layout(
    "mpq_member",
    384,
    "incarnation:Q pid:Q start_time:Q pid_namespace:Q command:16s role:I weak:I joined_at:Q "
    "enqueued_items:Q enqueued_bytes:Q full:Q waits:Q lock_waits:Q lock_wait_max_ns:Q flushes:Q "
    "flush_ns:Q flush_histogram:20Q dropped_items:Q flushed_bytes:Q duplicate_items:Q reserved:9Q",
)

CONTROL = Layout(
    "mpq_control",
    2944,
    "magic:Q version:I ring_entries:I uuid:16s meta_inode:Q meta_device:Q boot_id:40s hash_seed:Q "
    "segment_size:Q ack_window:I max_members:I members_offset:Q ring_offset:Q window_offset:Q "
    "attempts_offset:Q total_bytes:Q epoch:Q built_at:Q identity_hash:Q pad0:80s "
    "~owner:Q tail_select:Q tail:96s "
    "~poison_errno:I poison_stage:I sealed:I fault:I seq_mark:Q config_number:Q "
    "oldest_generation:Q epoch_first_seq:Q epoch_previous_seq:Q gateless:I generation_mark:Q "
    "gate_device:Q gate_inode:Q "
    "~capacity:Q max_bytes:Q max_item:Q interval_ns:Q ack_linger_ns:Q retain_ns:Q "
    "lease_timeout_ns:Q dead_retain_ns:Q max_segments:I keep_segments:I interval_items:I "
    "durability:I max_attempts:I backoff_count:I backoff_ns:16Q "
    "~consumer_select:Q consumer:Q expired_leases:Q dead_items:Q ~consumer_record:256s "
    "~delivered_items:Q redelivered_items:Q nacked_items:Q loss_events:Q reserved_items:Q "
    "read_position:Q read_seq:Q oldest_enqueued_at:Q blocked_on_claim:Q blocked_on_window:Q "
    "cursor_floor:Q cursor_writes:Q unreclaimed:Q corrupt_saved:Q corrupt_skipped:Q "
    "reserved_bytes:Q lost_segments:Q "
    "~flush_owner:Q flush_pair:2Q flush_crowd:Q flush_started:Q flush_done:Q durable_position:Q "
    "durable_items:Q "
    "durable_bytes:Q flush_recent_ns:Q flushed_at_ns:Q torn_items:Q recovered_at_most:Q "
    "recoveries:Q "
    "~items_event:I items_waiting:I ~space_event:I space_waiting:I ~flush_event:I flush_waiting:I "
    "~segment_event:I segment_waiting:I "
    "~next_incarnation:Q takeovers:Q segments_made:Q segments_reused:Q segments_removed:Q "
    "members_dead:Q retired:384s shared:384s",
)

LAYOUTS: Final = (
    FRAME,
    SEGMENT_HEADER,
    ROLL,
    OPTIONS,
    KEY,
    META_SLOT,
    CURSOR_ATTEMPT,
    TOTALS,
    CURSOR_SLOT,
    KEY_SAVED,
    KEY_SLOT,
    KEY_RING,
    RING_ENTRY,
    TAIL,
    CONSUMER_RECORD,
    WINDOW_WORD,
    MEMBER,
    CONTROL,
)


def frame_extent(ext_length: int, length: int) -> int:
    """Bytes that a frame takes in its segment: header, extension and payload, aligned to 32."""
    return (FRAME_HEADER + ext_length + length + FRAME_ALIGN - 1) & ~(FRAME_ALIGN - 1)


def header_seed(hash_seed: int, generation: int, offset: int) -> int:
    """Seed of a frame's header hash; adding `seq * SEED_SEQ` gives that of its body hash."""
    return (hash_seed + generation * SEED_GENERATION + offset * SEED_OFFSET) & MASK64


def record_check(words: Sequence[int]) -> int:
    """Check word of an A/B record in control, over the words before it."""
    total = SEED_OFFSET
    for index, word in enumerate(words):
        total += word * (SEED_GENERATION + 2 * index)
    return total & MASK64


def position(generation: int, offset: int) -> int:
    """The ordered position of an offset (bytes, a multiple of 32) in a generation."""
    return (generation << POSITION_BITS) | (offset >> 5)


def position_parts(value: int) -> tuple[int, int]:
    """Generation and offset (bytes) of a position."""
    return value >> POSITION_BITS, (value & ((1 << POSITION_BITS) - 1)) << 5


def cursor_slot_bytes(window: int) -> int:
    """Size of one cursor slot for an ack window of that many items, whole pages."""
    raw = CURSOR_HEADER + window // 8 + CURSOR_ATTEMPTS * CURSOR_ATTEMPT.size
    return (raw + PAGE - 1) & ~(PAGE - 1)


def keys_offset(attempts_offset: int, window: int) -> int:
    """Where the ring of keys begins in `control`, behind the attempts of an ack window."""
    return (attempts_offset + 8 * window + PAGE - 1) & ~(PAGE - 1)


def keys_bytes(key_window: int) -> int:
    """Size of the file `keys` for so many remembered keys; 0 without."""
    return (key_window + BATCH_MAX) * KEY_SAVED.size if key_window else 0


def segment_name(generation: int) -> str:
    """File name of a segment."""
    return f"segment-{generation:012d}"
