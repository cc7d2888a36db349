"""The shared control file, and who is alive.

Owns the question whether control may be believed: only when it was built since the last boot for
this very meta, and when its records pass their checks. Reads with plain reads; takes no lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpqueue import layout
from mpqueue.exceptions import Closed
from mpqueue.reader.files import Meta, open_file, xxh64

# Reads of a record repeat while it is being written; more often than this it is damaged.
STABLE_READS = 16


class Member(NamedTuple):
    """One entry of the member table. `alive` is the kernel's word: the lock byte is held."""

    incarnation: int
    pid: int
    start_time: int
    command: str
    role: str
    weak: bool
    alive: bool
    joined_at: int
    enqueued_items: int
    enqueued_bytes: int
    flushes: int
    full: int


class Control(NamedTuple):
    """A snapshot of `control`. Only `current` ones (this boot, this meta) are the truth."""

    current: bool
    reason: str
    values: Mapping[str, Any]
    tail: Mapping[str, int]
    consumer: Mapping[str, int]
    totals: Mapping[str, int]
    raw: bytes


def boot_id() -> str:
    """The kernel's id of this boot; empty where it cannot be read (then control is not used)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_control(directory: Path, meta: Meta) -> Control | None:
    """A snapshot of control, or None when there is none that parses. Raises OSError.

    `current` says whether it speaks of this boot and of this meta; `reason` says why not.
    """
    path = directory / "control"
    try:
        descriptor = open_file(path)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        raw = os.pread(descriptor, size, 0)
        if len(raw) < layout.CONTROL.size:
            return None
        values = layout.CONTROL.unpack(raw)
        try:
            consumer = _consumer(descriptor)
            # The window must belong to the record: look again while acks go on, but not for ever.
            for _ in range(STABLE_READS):
                raw = os.pread(descriptor, size, 0)
                before = consumer
                consumer = _consumer(descriptor)
                if consumer == before:
                    break
            # Last, so that the floor is never ahead of it.
            tail = _active(descriptor, "tail_select", "tail", layout.TAIL)
        except ValueError as error:
            text = f"its record {error} fails its check"
            return Control(False, text, values, {}, {}, {}, raw)
    finally:
        os.close(descriptor)
    reason = _control_reason(raw, values, meta, directory / "meta")
    totals = dict(zip(layout.TOTALS_FIELDS, consumer.pop("totals"), strict=True))
    return Control(not reason, reason, values, tail, consumer, totals, raw)


def _consumer(descriptor: int) -> dict[str, Any]:
    return _active(descriptor, "consumer_select", "consumer_record", layout.CONSUMER_RECORD)


def _active(descriptor: int, select: str, name: str, table: layout.Layout) -> dict[str, Any]:
    """The active half of an A/B record; raises ValueError when it fails its check word."""
    select_at = layout.CONTROL.offset(select)
    base = layout.CONTROL.offset(name)
    for _ in range(STABLE_READS):
        selector = os.pread(descriptor, 8, select_at)
        half = os.pread(descriptor, table.size, base + (selector[0] & 1) * table.size)
        *words, check = struct.unpack(f"<{table.size // 8}Q", half)
        if check == layout.record_check(words):
            # Whole, and the selector only grows: if it moved meanwhile, this was true a moment ago.
            return table.unpack(half)
    raise ValueError(name)


def _control_reason(raw: bytes, values: Mapping[str, Any], meta: Meta, path: Path) -> str:
    """Why control is not the truth now; empty when it is."""
    identity = layout.CONTROL.offset("identity_hash")
    if values["magic"] != layout.CONTROL_MAGIC:
        return "it has no control magic"
    if values["version"] != layout.FORMAT_VERSION:
        return f"it has format version {values['version']}"
    if values["identity_hash"] != xxh64(raw[:identity], 0):
        return "its identity fails its hash"
    if values["uuid"] != bytes.fromhex(meta.uuid):
        return "it belongs to another queue"
    stat = path.stat()
    here = (stat.st_ino, stat.st_dev)
    if (values["meta_inode"], values["meta_device"]) != here or (meta.inode, meta.device) != here:
        return "it was copied or restored"
    if values["epoch"] != meta.epoch:
        return "it is of another epoch"
    if values["boot_id"].rstrip(b"\0").decode("ascii", "replace") != boot_id():
        return "it was built before the last boot"
    if len(raw) < values["total_bytes"]:
        return "it is cut short"
    return ""


class Liveness:
    """Asks the kernel whether incarnations live, by a probe that takes no lock.

    Holds one descriptor, until `close` or until nobody refers to it any more.
    """

    def __init__(self, directory: Path) -> None:
        """Raises OSError when meta cannot be opened for reading."""
        self._path = directory
        self._descriptor = open_file(directory / "meta")
        self._closer = weakref.finalize(self, os.close, self._descriptor)

    def close(self) -> None:
        """Closes the descriptor. Idempotent."""
        self._closer()

    def held(self, byte: int) -> bool:
        """Whether somebody holds that lock byte; any error means yes. Raises Closed."""
        if not self._closer.alive:
            raise Closed(f"{self._path}: this inspection was closed; call inspect() again")
        probe = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        probe += bytes(-len(probe) % 8)
        try:
            answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, probe)
        except OSError:
            return True
        kind = struct.unpack_from("h", answer)[0]
        return bool(kind != fcntl.F_UNLCK)

    def alive(self, incarnation: int) -> bool:
        """Whether that attachment lives; any error means yes."""
        return self.held(layout.BYTE_MEMBERS + incarnation)


def members(control: Control, liveness: Liveness) -> Iterator[Member]:
    """The entries of the member table that are in use."""
    base = int(control.values["members_offset"])
    for index in range(int(control.values["max_members"])):
        offset = base + index * layout.MEMBER.size
        if offset + layout.MEMBER.size > len(control.raw):
            return
        if not any(control.raw[offset : offset + 8]):
            continue
        entry = layout.MEMBER.unpack(control.raw, offset)
        yield Member(
            incarnation=entry["incarnation"],
            pid=entry["pid"],
            start_time=entry["start_time"],
            command=entry["command"].rstrip(b"\0").decode("utf-8", "replace"),
            role="consumer" if entry["role"] & layout.ROLE_CONSUMER else "producer",
            weak=bool(entry["weak"]),
            alive=liveness.alive(entry["incarnation"]),
            joined_at=entry["joined_at"],
            enqueued_items=entry["enqueued_items"],
            enqueued_bytes=entry["enqueued_bytes"],
            flushes=entry["flushes"],
            full=entry["full"],
        )
