"""`Stats` and members of a queue from the outside: what `Queue.stats()` says, without joining.

A scraper must leave no trace: joining takes a place in the table of members, makes a missing
semaphore, and after a reboot rebuilds `control`, all of it owned by whoever scrapes. Plain reads of
`control` need nothing but permission to read. Every number is that of one moment, but not all of
the same: the consumer's were read before the producers', so that depth errs upwards.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpqueue import layout, stats
from mpqueue.reader.files import xxh64
from mpqueue.reader.inspect import Inspection
from mpqueue.reader.segment import SEGMENT_NAME, open_segment

_DAMAGED = 1  # bit of a ring entry's bytes: the file is never used again
_KEPT_MAX = 64
_OWN = {"meta", "control", "control-new", "cursor", "keys", "keys-new"}
_SUMMED = (
    "full",
    "waits",
    "lock_waits",
    "flushes",
    "flush_ns",
    "dropped_items",
    "duplicate_items",
)
_COPIED = (
    "delivered_items",
    "redelivered_items",
    "nacked_items",
    "expired_leases",
    "dead_items",
    "loss_events",
    "lost_segments",
    "torn_items",
    "segments_made",
    "segments_reused",
    "segments_removed",
    "unreclaimed",
    "takeovers",
    "cursor_writes",
    "corrupt_saved",
    "corrupt_skipped",
    "recoveries",
    "recovered_at_most",
    "sealed",
    "poison_errno",
    "fault",
    "durability",
    "epoch",
)


class SegmentState(NamedTuple):
    """One segment file: its size in bytes, and what it is to the consumer.

    `state` is "settled" (kept by the option retain), "reserved" (from the oldest item in hand to
    where the consumer reads), "ready", "written" (puts go there), "prepared" (for the next ones),
    "kept" (empty, for reuse) or "damaged" (never used again).
    """

    generation: int
    bytes: int
    state: str


def read_stats(view: Inspection) -> stats.Stats | None:
    """The numbers of a queue that some process has opened since the last boot, else None.

    None also for a copied directory. Raises OSError, Closed.
    """
    control = view.source.control
    if control is None:
        return None
    values, tail, consumer = control.values, control.tail, control.consumer
    totals = {name: value for name, value in control.totals.items() if name != "torn_items"}
    depth = max(0, tail["items"] - totals["settled_items"])
    scheduled = tail["scheduled"] + consumer["scheduled"]
    backlog = max(0, tail["bytes"] - totals["settled_bytes"])
    of_members = _of_members(view)
    of_consumer = _of_consumer(values, consumer["floor"], of_members["consumer_attached"])
    numbers: dict[str, Any] = {
        **totals,
        **{name: values[name] for name in _COPIED},
        "enqueued_items": tail["items"],
        "enqueued_bytes": tail["bytes"],
        "depth": depth,
        "backlog_bytes": backlog,
        "scheduled_items": scheduled,
        "ready_items": max(0, depth - of_consumer["reserved_items"] - scheduled),
        "unsynced_items": min(depth, max(0, tail["items"] - values["durable_items"])),
        "unsynced_bytes": min(backlog, max(0, tail["bytes"] - values["durable_bytes"])),
        "floor": consumer["floor"],
        "next_seq": tail["next_seq"],
        "floor_lag_items": max(0, tail["next_seq"] - consumer["floor"]),
        "oldest_age_ns": _oldest_age(view) if depth else 0,
        **_segments(values, control.raw, tail["position"]),
        "disk_bytes": _disk_bytes(view.path),
        **of_members,
        **of_consumer,
        **_keys(view),
    }
    if not of_members["consumer_attached"]:
        numbers["blocked_on_claim_pid"] = 0
    return stats.from_native(numbers)


def _of_consumer(values: Mapping[str, Any], floor: int, attached: bool) -> dict[str, int]:
    """What the consumer has in hand, and waits for: a dead one left its gauges."""
    return {
        "read_seq": max(floor, values["read_seq"]) if attached else floor,
        **{
            name: values[name] if attached else 0
            for name in ("reserved_items", "reserved_bytes", "blocked_on_window")
        },
    }


def read_members(view: Inspection) -> list[stats.Member]:
    """Who is attached, or died attached: as `Queue.members()`. Raises Closed."""
    return [
        stats.member(
            (
                entry["incarnation"],
                entry["pid"],
                entry["pid_namespace"],
                entry["command"].partition(b"\0")[0].decode("utf-8", "replace"),
                entry["role"],
                view.source.liveness.alive(entry["incarnation"]),
                bool(entry["weak"]),
                entry["start_time"],
                entry["joined_at"],
                entry["enqueued_items"],
                entry["enqueued_bytes"],
                max(0, entry["enqueued_bytes"] - entry["flushed_bytes"]),
                entry["full"],
                entry["dropped_items"],
                entry["waits"],
                entry["lock_waits"],
                entry["lock_wait_max_ns"],
                entry["flushes"],
                entry["flush_ns"],
            ),
            layout.ROLE_CONSUMER,
        )
        for entry in _entries(view)
        if entry["role"]
    ]


def read_segments(view: Inspection) -> list[SegmentState]:
    """The segment files as control knows them, oldest first; those that are kept come last."""
    control = view.source.control
    if control is None:
        return []
    tail = layout.position_parts(control.tail["position"])[0]
    floor = layout.position_parts(control.consumer["floor_position"])[0]
    read = layout.position_parts(control.values["read_position"])[0]
    apart = control.values["read_seq"] > control.consumer["floor"]

    def state(generation: int, size: int) -> str:
        if size & _DAMAGED:
            return "damaged"
        if generation >= tail:
            return "written" if generation == tail else "prepared"
        if generation < floor:
            return "settled"
        return "reserved" if apart and generation <= read else "ready"

    live, kept = _files(control.values, control.raw, tail)
    return [
        *(SegmentState(number, size & ~_DAMAGED, state(number, size)) for number, size in live),
        *(SegmentState(number, size & ~_DAMAGED, "kept") for number, size in kept),
    ]


def _entries(view: Inspection) -> Iterator[dict[str, Any]]:
    """The places of the table of members that are or were taken."""
    control = view.source.control
    if control is None:
        return
    base = int(control.values["members_offset"])
    end = min(base + int(control.values["max_members"]) * layout.MEMBER.size, len(control.raw))
    for offset in range(base, end - layout.MEMBER.size + 1, layout.MEMBER.size):
        if any(control.raw[offset : offset + 8]):
            yield layout.MEMBER.unpack(control.raw, offset)


def _of_members(view: Inspection) -> dict[str, Any]:
    """Sums over members of now and before, and what is known of two of them by incarnation."""
    control = view.source.control
    assert control is not None
    entries = list(_entries(view))
    before = [
        layout.MEMBER.unpack(control.raw, layout.CONTROL.offset(name))
        for name in ("retired", "shared")
    ]
    counted = [*before, *entries]
    alive = view.source.liveness.alive
    present = [entry for entry in entries if entry["role"] and alive(entry["incarnation"])]
    pids = {entry["incarnation"]: entry["pid"] for entry in entries}
    holder = control.values["consumer"]
    attached = bool(holder) and alive(holder)
    histograms = (entry["flush_histogram"] for entry in counted)
    return {
        **{name: sum(entry[name] for entry in counted) for name in _SUMMED},
        "lock_wait_max_ns": max(entry["lock_wait_max_ns"] for entry in counted),
        "flush_histogram": tuple(map(sum, zip(*histograms, strict=True))),
        "members": len(entries),
        "members_alive": len(present),
        "weak": any(entry["weak"] for entry in present),
        "consumer_attached": attached,
        "consumer_pid": pids.get(holder, 0) if attached else 0,
        "blocked_on_claim_pid": pids.get(control.values["blocked_on_claim"], 0),
    }


def _keys(view: Inspection) -> dict[str, int]:
    """What control says of remembered keys."""
    control = view.source.control
    assert control is not None
    window = int(view.meta.options["key_window"] or 0)
    if not window:
        return {"keys_remembered": 0, "keys_damaged": 0}
    values = control.values
    offset = layout.keys_offset(values["attempts_offset"], values["ack_window"])
    keys = layout.KEY_RING.unpack(control.raw, offset)
    return {"keys_remembered": min(keys["count"], window), "keys_damaged": keys["damaged"]}


def _segments(values: Mapping[str, Any], raw: bytes, position: int) -> dict[str, int]:
    """How many segment files there are, and the room that their bound gives."""
    live, kept = _files(values, raw, layout.position_parts(position)[0])
    room = (values["max_segments"] - 1) * (values["segment_size"] - layout.SEGMENT_FIRST)
    return {
        "segments": len(live),
        "kept_segments": len(kept),
        "capacity_bytes": values["max_bytes"] or room,
    }


def _disk_bytes(path: Path) -> int:
    """Bytes of the queue's own files, also of those that a killed preparer left. Raises OSError."""
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            preparing = entry.name.startswith("preparing-")
            own = entry.name in _OWN or entry.name.startswith("making-") or preparing
            if not own and not SEGMENT_NAME.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and not (preparing and found.st_nlink > 1):
                    total += found.st_size
    return total


Files = list[tuple[int, int]]  # generation, and bytes with the damaged bit


def _files(values: Mapping[str, Any], raw: bytes, tail: int) -> tuple[Files, Files]:
    """The live segments up to the one prepared ahead, and those that are kept for reuse."""
    oldest = int(values["oldest_generation"])
    live = range(oldest, tail + 2)[: layout.RING]
    behind = range(max(0, oldest - _KEPT_MAX), oldest)
    return (
        list(_ring(values, raw, live, layout.RING_PREPARED)),
        list(_ring(values, raw, behind, layout.RING_KEPT)),
    )


def _ring(
    values: Mapping[str, Any], raw: bytes, generations: range, code: int
) -> Iterator[tuple[int, int]]:
    """Those among `generations` that are in that state."""
    for generation in generations:
        place = values["ring_offset"] + generation % layout.RING * layout.RING_ENTRY.size
        entry = layout.RING_ENTRY.unpack(raw, place)
        if entry["state"] & 0xFF == code and entry["generation"] == generation:
            yield generation, entry["bytes"]


def _oldest_age(view: Inspection) -> int:
    """Age of the item at the floor, ns; 0 when its frame cannot be read."""
    control = view.source.control
    assert control is not None
    generation, offset = layout.position_parts(control.consumer["floor_position"])
    if offset < layout.SEGMENT_FIRST:
        generation = max(generation, control.values["oldest_generation"])
        offset = layout.SEGMENT_FIRST
    # At the end of a segment the floor's frame is the first of the next one.
    for place in ((generation, offset), (generation + 1, layout.SEGMENT_FIRST)):
        enqueued_at = _enqueued_at(view, *place, control.consumer["floor"])
        if enqueued_at:
            return max(0, time.time_ns() - enqueued_at)
    return 0


def _enqueued_at(view: Inspection, generation: int, offset: int, floor: int) -> int:
    """When the frame there was put, wall clock ns; 0 when there is none at or above `floor`."""
    segment = open_segment(view.path, generation, view.meta)
    if segment is None:
        return 0
    try:
        raw = segment.read(offset, layout.FRAME_HEADER)
    finally:
        segment.close()
    if len(raw) < layout.FRAME_HEADER:
        return 0
    frame = layout.FRAME.unpack(raw)
    seed = layout.header_seed(view.meta.hash_seed, generation, offset)
    whole = xxh64(raw[8:32], seed) == frame["header_hash"]
    if not whole or frame["flags"] & layout.FLAG_PAD or frame["seq"] < floor:
        return 0
    return int(frame["enqueued_at"])
