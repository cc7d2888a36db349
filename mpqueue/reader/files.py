"""The durable small files of a queue, read as they lie: meta and cursor.

Owns parsing and the question whether a structure may be believed. It never writes, never locks,
never maps (a file cut short under a mapping would kill the process). What is damaged but has a
whole twin is a `Finding`; what leaves no truth at all raises.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from mpqueue import layout
from mpqueue.exceptions import FormatError, NotAQueue


class Finding(NamedTuple):
    """One thing that `verify` has to say.

    `severity` is "error" (damage to something still owed), "warning" (a twin or a bound is gone,
    nothing is lost) or "note". `offset` (bytes) and `seq` are -1 where they do not apply.
    """

    severity: str
    file: str
    offset: int
    seq: int
    message: str


class Meta(NamedTuple):
    """The newest valid slot of `meta`. Times are wall clock ns.

    `keys` are id and check value of those that items are encrypted with, oldest first.
    """

    number: int
    uuid: str
    hash_seed: int
    created_at: int
    epoch: int
    seq_mark: int
    generation_mark: int
    inode: int
    device: int
    poison_errno: int
    poison_stage: str
    sealed: bool
    options: Mapping[str, Any]
    keys: tuple[tuple[int, bytes], ...]


class Cursor(NamedTuple):
    """One valid slot of `cursor`: what was settled when it was written."""

    number: int
    floor: int
    floor_position: int
    next_seq: int
    durable_position: int
    epoch: int
    written_at: int
    totals: Mapping[str, int]
    bitmap: bytes
    attempts: Mapping[int, int]
    delivered_items: int
    redelivered_items: int
    nacked_items: int
    loss_events: int
    lost_segments: int
    full_items: int
    dropped_items: int
    expired_leases: int
    dead_items: int
    claimed_items: int
    durable_items: int


xxh64: Callable[[bytes | memoryview, int], int] = xxhash.xxh64_intdigest
"""XXH64 of some bytes with a seed below 2^64."""


def open_file(path: Path) -> int:
    """A descriptor of a regular file, for reading.

    Raises FormatError for what is something else, which may never answer, or lead elsewhere;
    OSError, with advice where it is forbidden.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
        mode = os.fstat(descriptor).st_mode
    except PermissionError as error:
        raise PermissionError(
            error.errno,
            "this user may not read the queue: check owner and mode of the directory and its "
            "files (`mpqueue init --mode`), or look as their owner",
            str(path),
        ) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise
        raise _irregular(path, os.lstat(path).st_mode) from None
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return descriptor


def _irregular(path: Path, mode: int) -> FormatError:
    found = _KINDS.get(stat.S_IFMT(mode), "a special file")
    return FormatError(
        f"{path}: this is {found}, and the files of a queue are regular files: put back the file "
        "that was there, or remove it; nothing was touched"
    )


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: Path, limit: int = -1) -> bytes:
    """The bytes of a file. Raises as open_file()."""
    with open(path, "rb", buffering=0, opener=lambda name, flags: open_file(path)) as file:
        data = file.read() if limit < 0 else file.read(limit)
    return data or b""


# ---- meta ---------------------------------------------------------------------------------------


def read_meta(directory: Path) -> tuple[Meta, list[Finding]]:
    """The newest valid meta slot, and a finding for a slot that is not.

    Raises NotAQueue when there is no meta or it is somebody else's, FormatError when neither slot
    holds or a newer format wrote them, OSError when the file cannot be read.
    """
    path = directory / "meta"
    try:
        data = read_file(path, 2 * layout.PAGE)
    except FileNotFoundError:
        why = "no file `meta`" if directory.is_dir() else "no such directory"
        raise NotAQueue(
            f"{directory}: no queue here ({why}); check the path, or make one with `mpqueue init`"
        ) from None
    except NotADirectoryError:
        raise NotAQueue(
            f"{directory}: not a directory; a queue is a directory: check the path"
        ) from None
    good: list[dict[str, Any]] = []
    findings: list[Finding] = []
    ours = False
    for index in range(2):
        offset = index * layout.PAGE
        slot = data[offset : offset + layout.PAGE]
        problem = "is cut short"
        if len(slot) == layout.PAGE:
            values = layout.META_SLOT.unpack(slot)
            problem = "fails its hash"
            ours |= values["magic"] == layout.META_MAGIC
            if values["magic"] != layout.META_MAGIC:
                problem = "has no meta magic"
            elif values["hash"] == xxh64(slot[:-8], 0):
                if values["version"] != layout.FORMAT_VERSION:
                    raise FormatError(
                        f"{path}: format version {values['version']}, this reader knows "
                        f"{layout.FORMAT_VERSION}; use a newer mpqueue, nothing was touched"
                    )
                good.append(values)
                continue
        findings.append(
            Finding("warning", "meta", offset, -1, f"slot {'AB'[index]} {problem}; its twin counts")
        )
    if not ours:
        raise NotAQueue(f"{path}: not a file of mpqueue; check the path")
    if not good:
        raise FormatError(
            f"{path}: neither slot is valid, so the queue cannot be opened; restore meta from a "
            "backup of the same queue, nothing was touched"
        )
    best = max(good, key=lambda values: int(values["number"]))
    return _meta(best), findings


def _meta(values: Mapping[str, Any]) -> Meta:
    stages = layout.STAGE_NAMES
    stage = int(values["poison_stage"])
    return Meta(
        number=values["number"],
        uuid=values["uuid"].hex(),
        hash_seed=values["hash_seed"],
        created_at=values["created_at"],
        epoch=values["epoch"],
        seq_mark=values["seq_mark"],
        generation_mark=values["generation_mark"],
        inode=values["inode"],
        device=values["device"],
        poison_errno=values["poison_errno"],
        poison_stage=stages[stage] if stage < len(stages) else str(stage),
        sealed=bool(values["sealed"]),
        options=_options(layout.OPTIONS.unpack(values["options"])),
        keys=_keys(values["keys"], values["keys_count"]),
    )


def _keys(data: bytes, count: int) -> tuple[tuple[int, bytes], ...]:
    used = range(min(count, layout.KEYS))
    entries = (layout.KEY.unpack(data, index * layout.KEY.size) for index in used)
    return tuple((entry["id"], entry["check"]) for entry in entries)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options under their public names: durations in float seconds, absent ones None."""
    names = layout.DURABILITY_NAMES
    durability = int(values["durability"])
    return {
        "segment_size": values["segment_size"],
        "max_segments": values["max_segments"],
        "keep_segments": values["keep_segments"],
        "capacity": values["capacity"] or None,
        "max_bytes": values["max_bytes"] or None,
        "max_item": values["max_item"],
        "durability": names[durability] if durability < len(names) else str(durability),
        "interval_items": values["interval_items"],
        "interval": values["interval_ns"] / 1e9,
        "ack_window": values["ack_window"],
        "ack_linger": values["ack_linger_ns"] / 1e9,
        "max_members": values["max_members"],
        "key_window": values["key_window"] or None,
        "retain": values["retain_ns"] / 1e9,
        "lease_timeout": values["lease_timeout_ns"] / 1e9 or None,
        "max_attempts": values["max_attempts"] or None,
        "dead_retain": values["dead_retain_ns"] / 1e9 or None,
        "codec": values["codec"].rstrip(b"\0").decode("utf-8", "replace") or "bytes",
        "mode": values["file_mode"],
    }


# ---- keys ---------------------------------------------------------------------------------------


def check_keys(directory: Path, meta: Meta) -> list[Finding]:
    """Findings about the file of remembered keys: what fails there may be accepted once more."""
    size = layout.keys_bytes(int(meta.options["key_window"] or 0))
    text = "puts of keys that it held may be accepted once more"
    if not size:
        return []
    try:
        data = read_file(directory / "keys")
    except FileNotFoundError:
        return [Finding("warning", "keys", -1, -1, f"is missing: {text}")]
    if len(data) != size:
        return [Finding("warning", "keys", -1, -1, f"has {len(data)} bytes, not {size}: {text}")]
    return [
        Finding("warning", "keys", offset, -1, f"an entry does not validate: {text}")
        for offset in range(0, size, layout.KEY_SAVED.size)
        if not _key_holds(data, offset, meta)
    ]


def _key_holds(data: bytes, offset: int, meta: Meta) -> bool:
    entry = layout.KEY_SAVED.unpack(data, offset)
    if not any(data[offset : offset + layout.KEY_SAVED.size]):
        return True
    slot = offset // layout.KEY_SAVED.size
    seed = (meta.hash_seed + slot * layout.SEED_OFFSET) & layout.MASK64
    held = data[offset : offset + layout.KEY_SAVED.offset("check")]
    return bool(xxh64(held, seed) == entry["check"])


# ---- cursor -------------------------------------------------------------------------------------


def read_cursor(directory: Path, meta: Meta) -> tuple[Cursor | None, list[Finding]]:
    """The newest valid cursor slot, or None; a finding for a slot that is damaged.

    A slot of zeros was never written and is no damage. Raises OSError.
    """
    try:
        data = read_file(directory / "cursor")
    except FileNotFoundError:
        return None, [
            Finding("warning", "cursor", -1, -1, "is missing: every item will be delivered again")
        ]
    window = int(meta.options["ack_window"])
    size = layout.cursor_slot_bytes(window)
    best: Cursor | None = None
    findings: list[Finding] = []
    for index in range(2):
        slot = data[index * size : (index + 1) * size]
        if len(slot) == size and not any(slot):
            continue
        cursor = _cursor(slot, size, window, meta) if len(slot) == size else None
        if cursor is None:
            text = f"slot {'AB'[index]} does not validate; the other one counts, which can only "
            findings.append(Finding("warning", "cursor", index * size, -1, text + "redeliver"))
        elif best is None or cursor.number > best.number:
            best = cursor
    return best, findings


def _cursor(slot: bytes, size: int, window: int, meta: Meta) -> Cursor | None:
    values = layout.CURSOR_SLOT.unpack(slot)
    at = layout.CURSOR_SLOT.offset("hash")
    blank = slot[:at] + bytes(8) + slot[at + 8 :]
    if (
        values["magic"] != layout.CURSOR_MAGIC
        or values["version"] != layout.FORMAT_VERSION
        or values["slot_bytes"] != size
        or values["window"] != window
        or values["uuid"] != bytes.fromhex(meta.uuid)
        or values["attempts_count"] > layout.CURSOR_ATTEMPTS
        or values["hash"] != xxh64(blank, meta.hash_seed)
    ):
        return None
    start = layout.CURSOR_HEADER + window // 8
    entries = (
        layout.CURSOR_ATTEMPT.unpack(slot, start + index * layout.CURSOR_ATTEMPT.size)
        for index in range(values["attempts_count"])
    )
    return Cursor(
        number=values["number"],
        floor=values["floor"],
        floor_position=values["floor_position"],
        next_seq=values["next_seq"],
        durable_position=values["durable_position"],
        epoch=values["epoch"],
        written_at=values["written_at"],
        totals=layout.TOTALS.unpack(values["totals"]),
        bitmap=slot[layout.CURSOR_HEADER : start],
        attempts={entry["seq"]: entry["attempts"] for entry in entries},
        delivered_items=values["delivered_items"],
        redelivered_items=values["redelivered_items"],
        nacked_items=values["nacked_items"],
        loss_events=values["loss_events"],
        lost_segments=values["lost_segments"],
        full_items=values["full_items"],
        dropped_items=values["dropped_items"],
        expired_leases=values["expired_leases"],
        dead_items=values["dead_items"],
        claimed_items=values["claimed_items"],
        durable_items=values["durable_items"],
    )
