"""Numbers of a queue: one frozen snapshot, under the words that the metrics use.

Counters are lifetime totals of the queue, whoever counted; gauges are now. All are read from shared
memory without a lock, so fields that change together may differ by what happened meanwhile.
"""

from __future__ import annotations

from mpqueue._record import Record
from mpqueue.options import DURABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mpqueue.options import Durability

__all__ = ["SYNC_BOUNDS", "Histogram", "Member", "Repair", "Stats", "from_native", "member"]

SYNC_BOUNDS: tuple[float, ...] = (*(16e-6 * 2**i for i in range(19)), float("inf"))
"""Upper bounds of the buckets of `Stats.sync_duration_seconds`, seconds."""


class Histogram(Record):
    """How long acts took. Buckets are not cumulative."""

    bounds: tuple[float, ...]
    """Upper bound of each bucket, seconds; the last is infinite."""
    counts: tuple[int, ...]
    """How many fell into each."""
    count: int
    """How many there were."""
    sum: float
    """Seconds they took together."""


class Stats(Record):
    """A snapshot of a queue's counters and gauges."""

    items_enqueued: int
    """Counter: items that took a seq, claims that became gaps included."""
    bytes_enqueued: int
    """Counter: their frames, bytes (48 and headers and payload, rounded up to 32)."""
    items_delivered: int
    """Counter: hand-outs, repeated ones included."""
    items_redelivered: int
    """Counter: hand-outs of items that had been handed out before."""
    items_acked: int
    """Counter: items acked."""
    items_nacked: int
    """Counter: items given back."""
    leases_expired: int
    """Counter: items that were ready again because lease_timeout had passed."""
    dead_items: int
    """Counter: items moved to the dead letters; they count as acked too. `len(q.dead)` says how
    many are there now."""
    items_skipped: int
    """Counter: items dropped by skip()."""
    items_dropped: int
    """Counter: puts that found no room and were dropped by on_full="drop"."""
    items_duplicate: int
    """Counter: puts with a key that had been accepted before, which put nothing."""
    items_settled: int
    """Counter: acked, skipped, lost and gaps together."""
    bytes_settled: int
    """Counter: their frames, bytes."""
    claim_gaps: int
    """Counter: claims whose producer died or failed before it published."""
    lost_items: int
    """Counter: items found damaged."""
    lost_bytes: int
    """Counter: bytes passed over as damaged, a lower bound."""
    lost_segments: int
    """Counter: segment files with unsettled items that were missing or not this queue's."""
    loss_events: int
    """Counter: reports of loss that reserve made."""
    torn_items: int
    """Counter: items that a power cut took before they were promised durable."""
    lock_takeovers: int
    """Counter: times the header lock was taken over from the dead."""
    lock_waits: int
    """Counter: slices slept for the header lock."""
    lock_wait_max_seconds: float
    """Longest wait for the header lock."""
    waits: int
    """Counter: slices slept, for anything."""
    full: int
    """Counter: puts that found no room, whether they then waited or not."""
    depth: int
    """Gauge: items not yet settled; len() of the queue."""
    backlog_bytes: int
    """Gauge: their frames, bytes."""
    ready_items: int
    """Gauge: items that could be handed out."""
    reserved_items: int
    """Gauge: items in the consumer's hands."""
    reserved_bytes: int
    """Gauge: their frames, bytes."""
    scheduled_items: int
    """Gauge: items that are due later."""
    unsynced_items: int
    """Gauge: items that a power cut now could take, at most; claims in flight count."""
    unsynced_bytes: int
    """Gauge: their frames, bytes."""
    oldest_ready_age_seconds: float
    """Gauge: age of the oldest unsettled item, 0.0 when there is none: the alert to set."""
    floor: int
    """Gauge: lowest seq that is not settled."""
    next_seq: int
    """Gauge: seq of the next put."""
    read_seq: int
    """Gauge: the seq that the consumer meets next."""
    floor_lag_items: int
    """Gauge: next_seq - floor."""
    epoch: int
    """Gauge: which life of the queue; a new one after an operating-system crash or a copy."""
    segments: int
    """Gauge: segment files from the oldest one that was not given back yet, though its items may
    all be settled, to the one prepared ahead."""
    kept_segments: int
    """Gauge: segment files kept for reuse."""
    disk_bytes: int
    """Gauge: bytes of all files of the queue as its directory has them: segments (those that a
    killed preparer left, too), control, cursor, keys and meta; not those in corrupt/ and dead/."""
    capacity_bytes: int
    """Gauge: bytes of frames that there is room for: max_bytes, or what max_segments segments of
    segment_size hold. Not the option capacity, which counts items; and an item larger than a
    segment has one of its own size beyond this."""
    segments_made: int
    """Counter: segment files created."""
    segments_reused: int
    """Counter: segment files used again."""
    segments_removed: int
    """Counter: segment files unlinked."""
    unreclaimed: int
    """Gauge: files whose removal failed; it is tried again."""
    keys_remembered: int
    """Gauge: keys that a put is compared with, at most key_window."""
    keys_damaged: int
    """Gauge: remembered keys that the last recovery could not read: their next puts are accepted
    once more."""
    sync_duration_seconds: Histogram
    """How long flushes took."""
    cursor_writes: int
    """Counter: times acks were persisted."""
    corrupt_saved: int
    """Counter: damaged extents saved in corrupt/."""
    corrupt_skipped: int
    """Counter: damaged extents that could not be saved."""
    members: int
    """Gauge: entries in the table of members, also those of handles that are gone: the next ones
    to attach take them."""
    members_alive: int
    """Gauge: of them, handles that are attached now, one for each `Queue` that a process has open.
    At most max_members: handles beyond the table work, but have no entry and do not count here."""
    consumer_attached: bool
    """Gauge: a process has the consumer role."""
    consumer_pid: int
    """Which one, in its own pid namespace; 0 when nobody has, or one without an entry."""
    blocked_on_claim: int
    """Gauge: pid of a live producer that the consumer waits for to finish its put; 0 = none, or
    one without an entry."""
    blocked_on_window: bool
    """Gauge: acks ran ahead as far as ack_window allows; the oldest item holds everything."""
    recoveries: int
    """Counter: opens that had to rebuild `control`: after a reboot, damage or a failed flush."""
    recovered_at_most: int
    """Items that the newest recovery may have lost to a power cut, at most."""
    durability: Durability
    """The policy now."""
    sealed: bool
    """Gauge: no more puts."""
    poisoned: bool
    """Gauge: a flush failed; puts are refused."""
    poison_errno: int
    """errno of that flush; 0 when there is none."""
    weak_liveness: bool
    """Gauge: this filesystem cannot pin lock bytes by a mapping; segments are not reused."""
    fault: bool
    """Gauge: a bug or a broken promise of the kernel was met; puts are refused."""


class Member(Record):
    """One attached process."""

    incarnation: int
    """Number of its attachment; never reused."""
    pid: int
    """Its process id, in its own pid namespace."""
    pid_namespace: int
    """Which one: inode of its /proc/self/ns/pid, 0 when that could not be read."""
    command: str
    """Its command name."""
    consumer: bool
    """It has, or last had, the consumer role."""
    alive: bool
    """The kernel says that its lock byte is held."""
    weak: bool
    """Its lock byte is held by a descriptor, not pinned by a mapping."""
    start_time: int
    """Field 22 of its /proc/pid/stat."""
    joined_at: float
    """When it attached, wall clock seconds."""
    items_enqueued: int
    """Items it put."""
    bytes_enqueued: int
    """Their frames, bytes."""
    unsynced_bytes: int
    """Gauge: at most so many of them a power cut now could take."""
    full: int
    """Its puts that found no room, whether they then waited or not."""
    items_dropped: int
    """Its puts that found no room and were dropped by on_full="drop"."""
    waits: int
    """Slices that it slept, for anything."""
    lock_waits: int
    """Slices that it slept for the header lock."""
    lock_wait_max_seconds: float
    """Its longest wait for the header lock."""
    flushes: int
    """Flushes that it led: one covers the puts of all that wait."""
    flush_seconds: float
    """How long they took together, seconds."""


class Repair(Record):
    """What repair() found and did."""

    items: int
    """Whole items in the queue."""
    gaps: int
    """Claims of dead producers, now gaps."""
    lost_items: int
    """Items found damaged."""
    lost_bytes: int
    """Bytes found damaged."""
    torn_items: int
    """Items that were never promised durable and are gone."""
    quarantined: int
    """Damaged extents and files saved in corrupt/."""
    cleared_poison: bool
    """A failed flush was latched and every live page has been written again."""
    rebuilt: bool
    """The control file was rebuilt."""


_RENAMED = {
    "items_enqueued": "enqueued_items",
    "bytes_enqueued": "enqueued_bytes",
    "items_delivered": "delivered_items",
    "items_redelivered": "redelivered_items",
    "items_acked": "acked_items",
    "items_nacked": "nacked_items",
    "leases_expired": "expired_leases",
    "items_skipped": "skipped_items",
    "items_dropped": "dropped_items",
    "items_duplicate": "duplicate_items",
    "items_settled": "settled_items",
    "bytes_settled": "settled_bytes",
    "claim_gaps": "gap_items",
    "lock_takeovers": "takeovers",
    "blocked_on_claim": "blocked_on_claim_pid",
}
_FLAGS = {
    "consumer_attached": "consumer_attached",
    "blocked_on_window": "blocked_on_window",
    "sealed": "sealed",
    "poisoned": "poison_errno",
    "weak_liveness": "weak",
    "fault": "fault",
}
_SECONDS = {
    "lock_wait_max_seconds": "lock_wait_max_ns",
    "oldest_ready_age_seconds": "oldest_age_ns",
}

_MEMBER_SECONDS = ("joined_at", "lock_wait_max_seconds", "flush_seconds")


def from_native(stored: Mapping[str, Any]) -> Stats:
    """Stats from the native snapshot."""
    values: dict[str, object] = {}
    for name in Stats.__annotations__:
        if name == "durability":
            values[name] = DURABILITIES[stored[name]]
        elif name == "sync_duration_seconds":
            values[name] = Histogram(
                bounds=SYNC_BOUNDS,
                counts=stored["flush_histogram"],
                count=stored["flushes"],
                sum=stored["flush_ns"] / 1e9,
            )
        elif name in _FLAGS:
            values[name] = bool(stored[_FLAGS[name]])
        elif name in _SECONDS:
            values[name] = stored[_SECONDS[name]] / 1e9
        else:
            values[name] = stored[_RENAMED.get(name, name)]
    return Stats(**values)


def member(entry: Sequence[Any], consumer_role: int) -> Member:
    """A Member from the native tuple, whose order is that of the fields."""
    values: dict[str, Any] = dict(zip(Member.__annotations__, entry, strict=True))
    values["consumer"] = bool(values["consumer"] & consumer_role)
    for name in _MEMBER_SECONDS:
        values[name] /= 1e9
    return Member(**values)
