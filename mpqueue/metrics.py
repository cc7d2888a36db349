"""Metrics of queues for Prometheus: the table of names, readings, the text formats, a collector.

>>> from mpqueue import metrics  # doctest: +SKIP
>>> print(metrics.render(["spool"]))  # doctest: +SKIP
>>> prometheus_client.REGISTRY.register(metrics.Collector("spool"))  # doctest: +SKIP

Counters live in the queue itself, so any one process can tell them for all. A reading only looks:
it joins nothing, creates nothing, takes no lock and needs no more than permission to read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import mpqueue
from mpqueue import reader
from mpqueue.reader.stats import read_stats
from mpqueue.stats import Histogram

if TYPE_CHECKING:
    import prometheus_client.core

__all__ = [
    "FAMILIES",
    "OPENMETRICS",
    "TEXT",
    "Collector",
    "Family",
    "Reading",
    "Sample",
    "label",
    "read",
    "read_all",
    "render",
    "samples",
]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of what `render` gives."""
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content type of what `render(openmetrics=True)` gives."""

StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Report = Callable[[str, Exception], object]


class Family(NamedTuple):
    """One metric family. `kind` is counter, gauge, info or histogram; `help` is its HELP text."""

    field: str
    """The field of `Stats` that it shows, or a word for what is not there."""
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that all its samples have besides `queue`."""

    @property
    def name(self) -> str:
        """Name of the family, without the suffixes that its samples have."""
        return f"mpqueue_{self.field}"

    @property
    def unit(self) -> str:
        """Base unit, which ends the name: "seconds", "bytes" or ""."""
        last = self.field.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""


class Sample(NamedTuple):
    """One line of an exposition: suffix of the family's name, labels, value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Reading(NamedTuple):
    """What was read of one queue: values by field of `FAMILIES`, those that could be read."""

    queue: str
    """Absolute path of the queue, as its label shows it."""
    values: Mapping[str, object]
    error: Exception | None
    """Why it could not be read."""


UP = Family("up", "gauge", "1 if the queue could be read, 0 if not.")
LIVE = Family(
    "live",
    "gauge",
    "1 if numbers are those of now, 0 if no process has opened the queue since the machine "
    "started: then only what was on disk is shown.",
)
BUILD = Family("build", "info", "Version of the mpqueue that reads.")
POLICY = Family("queue", "info", "Durability policy of the queue.")

FAMILIES: tuple[Family, ...] = (
    UP,
    LIVE,
    BUILD,
    POLICY,
    Family("items_enqueued", "counter", "Items that took a seq, gaps included."),
    Family("bytes_enqueued", "counter", "Bytes of the frames of enqueued items."),
    Family("items_delivered", "counter", "Hand-outs, repeated ones included."),
    Family("items_redelivered", "counter", "Hand-outs of items handed out before."),
    Family("items_acked", "counter", "Items acked."),
    Family("items_nacked", "counter", "Items given back."),
    Family("leases_expired", "counter", "Items ready again because lease_timeout had passed."),
    Family("dead_items", "counter", "Items moved to the dead letters, acked here."),
    Family("items_skipped", "counter", "Items dropped by skip()."),
    Family(
        "items_dropped",
        "counter",
        "Puts dropped by on_full=drop because there was no room.",
        (("reason", "full"),),
    ),
    Family("items_duplicate", "counter", "Puts with a key that had been accepted before."),
    Family("items_settled", "counter", "Items acked, skipped, lost, and gaps."),
    Family("bytes_settled", "counter", "Bytes of the frames of settled items."),
    Family("claim_gaps", "counter", "Puts whose process died or failed before it published."),
    Family("lost_items", "counter", "Items found damaged."),
    Family("lost_bytes", "counter", "Bytes passed over as damaged, a lower bound."),
    Family("lost_segments", "counter", "Segment files missing or unreadable with items in them."),
    Family("loss_events", "counter", "Reports of loss that reserve made."),
    Family("torn_items", "counter", "Items cut by a power failure before they were durable."),
    Family("lock_takeovers", "counter", "Times the header lock was taken over from the dead."),
    Family("lock_waits", "counter", "Slices slept for the header lock."),
    Family("lock_wait_max_seconds", "gauge", "Longest wait for the header lock."),
    Family("waits", "counter", "Slices slept, for anything."),
    Family("full", "counter", "Puts that found no room, whether they then waited or not."),
    Family("depth", "gauge", "Items not yet settled."),
    Family("backlog_bytes", "gauge", "Bytes of the frames of items not yet settled."),
    Family("ready_items", "gauge", "Items that could be handed out."),
    Family("reserved_items", "gauge", "Items in the consumer's hands."),
    Family("reserved_bytes", "gauge", "Bytes of the frames of reserved items."),
    Family("scheduled_items", "gauge", "Items that are due later."),
    Family("unsynced_items", "gauge", "Items that a power cut now could take, at most."),
    Family("unsynced_bytes", "gauge", "Bytes of the frames of unsynced items."),
    Family("oldest_ready_age_seconds", "gauge", "Age of the oldest unsettled item, 0 if none."),
    Family("floor", "gauge", "Lowest seq that is not settled."),
    Family("next_seq", "gauge", "Seq of the next put."),
    Family("read_seq", "gauge", "Seq that the consumer meets next."),
    Family("floor_lag_items", "gauge", "Seqs from the floor to the next put."),
    Family("epoch", "gauge", "Life of the queue; a new one after a system crash or a copy."),
    Family("segments", "gauge", "Segment files not given back yet, and the one prepared ahead."),
    Family("kept_segments", "gauge", "Segment files kept for reuse."),
    Family("disk_bytes", "gauge", "Bytes of all files."),
    Family("capacity_bytes", "gauge", "Bytes of frames that there is room for."),
    Family("segments_made", "counter", "Segment files created."),
    Family("segments_reused", "counter", "Segment files used again."),
    Family("segments_removed", "counter", "Segment files unlinked."),
    Family("unreclaimed", "gauge", "Files whose removal failed and will be tried again."),
    Family("keys_remembered", "gauge", "Keys that a put is compared with."),
    Family("keys_damaged", "gauge", "Keys that the last recovery could not read."),
    Family("sync_duration_seconds", "histogram", "How long flushes took."),
    Family("cursor_writes", "counter", "Times acks were persisted."),
    Family("corrupt_saved", "counter", "Damaged extents saved in corrupt/."),
    Family("corrupt_skipped", "counter", "Damaged extents that could not be saved."),
    Family("members", "gauge", "Entries in the table of members, of handles gone too."),
    Family("members_alive", "gauge", "Attached handles in the table, at most max_members."),
    Family("consumer_attached", "gauge", "1 if a process has the consumer role."),
    Family("consumer_pid", "gauge", "Pid of the consumer, 0 if none or not in the table."),
    Family("blocked_on_claim", "gauge", "Pid of a live producer whose put holds the consumer up."),
    Family("blocked_on_window", "gauge", "1 if acks are as far ahead as ack_window allows."),
    Family("recoveries", "counter", "Opens that had to rebuild the shared state."),
    Family("recovered_at_most", "gauge", "Items that the newest recovery may have lost."),
    Family("sealed", "gauge", "1 if no more puts are taken."),
    Family("poisoned", "gauge", "1 if a flush failed: puts are refused."),
    Family("poison_errno", "gauge", "errno of the flush that failed, 0 if none."),
    Family("weak_liveness", "gauge", "1 if the filesystem cannot pin lock bytes by a mapping."),
    Family("fault", "gauge", "1 if a bug or a broken promise of the kernel was met."),
)
"""Every family: a field of `Stats` under its own name, in its order, after four of the reading."""

# After a reboot, before anybody opened the queue: what the cursor kept, under its own words.
_KEPT = {
    "items_delivered": "delivered_items",
    "items_redelivered": "redelivered_items",
    "items_acked": "acked_items",
    "items_nacked": "nacked_items",
    "leases_expired": "expired_leases",
    "dead_items": "dead_items",
    "items_skipped": "skipped_items",
    "items_settled": "settled_items",
    "bytes_settled": "settled_bytes",
    "claim_gaps": "gap_items",
    "lost_items": "lost_items",
    "lost_bytes": "lost_bytes",
    "lost_segments": "lost_segments",
    "loss_events": "loss_events",
    "full": "full_items",
    "items_dropped": "dropped_items",
    "torn_items": "torn_items",
}


# ---- reading ------------------------------------------------------------------------------------


def label(path: StrPath) -> str:
    """What a queue is called in its label: its absolute path, bytes that are no text as \\xNN."""
    return os.fsencode(os.path.abspath(os.fsdecode(path))).decode("utf-8", "backslashreplace")


def read(path: StrPath) -> Reading:
    """Reads one queue. Never raises for what is wrong with it: `error` says it, and `up` is 0."""
    name = os.fsdecode(path)
    queue = label(path)
    values: dict[str, object]
    try:
        with reader.inspect(name) as view:
            stats = read_stats(view)
            if stats is None:
                kept = view.counters
                values = {field: kept[word] for field, word in _KEPT.items() if word in kept}
                values["queue"] = view.options["durability"]
            else:
                values = stats._asdict()
                values["queue"] = values.pop("durability")
    except (mpqueue.MpqueueError, OSError, ValueError) as error:
        return Reading(queue, {"up": 0}, error)
    return Reading(queue, {**values, "up": 1, "live": stats is not None}, None)


def read_all(paths: Iterable[StrPath], report: Report | None = None) -> list[Reading]:
    """Reads each queue once, also one that is named twice.

    report: called with the label and the exception of each queue that could not be read.
    """
    readings = {reading.queue: reading for reading in map(read, paths)}
    for reading in readings.values():
        if reading.error is not None and report is not None:
            report(reading.queue, reading.error)
    return list(readings.values())


def samples(
    paths: Iterable[StrPath], report: Report | None = None
) -> Iterator[tuple[Family, list[Sample]]]:
    """All families that have samples, with those of every queue; `report` as for `read_all`."""
    readings = read_all(paths, report)
    for family in FAMILIES:
        found: list[Sample] = []
        if family is BUILD:
            found.append(Sample("_info", (("version", str(mpqueue.__version__)),), 1))
        for reading in readings:
            if family.field in reading.values:
                found += _samples(family, reading.queue, reading.values[family.field])
        if found:
            yield family, found


def _samples(family: Family, queue: str, value: object) -> Iterator[Sample]:
    labels: tuple[tuple[str, str], ...] = (("queue", queue), *family.labels)
    if isinstance(value, Histogram):
        total = 0
        for bound, count in zip(value.bounds, value.counts, strict=True):
            total += count
            yield Sample("_bucket", (*labels, ("le", _number(bound))), total)
        yield Sample("_count", labels, total)  # as many as in the buckets, also under load
        yield Sample("_sum", labels, value.sum)
    elif family.kind == "info":
        yield Sample("_info", (*labels, ("durability", str(value))), 1)
    else:
        assert isinstance(value, int | float)
        yield Sample("_total" if family.kind == "counter" else "", labels, value)


# ---- text ---------------------------------------------------------------------------------------


def render(
    paths: Iterable[StrPath], *, openmetrics: bool = False, report: Report | None = None
) -> str:
    """All metrics of these queues as text: Prometheus 0.0.4, or OpenMetrics 1.0.

    A queue that cannot be read is there as `mpqueue_up 0`; `report` as for `read_all`.
    """
    lines = []
    for family, found in samples(paths, report):
        name, kind = family.name, family.kind
        if not openmetrics:  # there, a family is named as its samples are, and info is a gauge
            name += {"counter": "_total", "info": "_info"}.get(kind, "")
            kind = "gauge" if kind == "info" else kind
        lines.append(f"# HELP {name} {_escaped(family.help, quotes=openmetrics)}")
        lines.append(f"# TYPE {name} {kind}")
        if openmetrics and family.unit:
            lines.append(f"# UNIT {name} {family.unit}")
        for suffix, labels, value in found:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{family.name}{suffix}{{{inside}}} {_number(value)}")
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _escaped(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(float(value)) if isinstance(value, float) else str(int(value))


# ---- prometheus_client --------------------------------------------------------------------------


class Collector:
    """A custom collector for prometheus_client (extra `prometheus`), for one or more queues.

    >>> prometheus_client.REGISTRY.register(Collector("spool"))  # doctest: +SKIP

    The queues need not exist yet: until they can be read they are there as `mpqueue_up 0`, and
    `report` is called as by `read_all`. It holds nothing open between scrapes, so that it does not
    care about forks; one process of many that share a queue is enough to show them all.
    """

    def __init__(self, *paths: StrPath, report: Report | None = None) -> None:
        """Raises ImportError when prometheus_client is missing, ValueError without a path."""
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError(
                "mpqueue.metrics.Collector needs prometheus_client: install mpqueue[prometheus]"
            ) from error
        if not paths:
            raise ValueError("a Collector shows at least one queue: Collector(path)")
        self._family = core.Metric
        self._paths = [os.path.abspath(os.fsdecode(path)) for path in paths]  # of this directory
        self._report = report

    def describe(self) -> list[prometheus_client.core.Metric]:
        """The families without samples, so that registering reads no queue."""
        return [self._metric(family) for family in FAMILIES]

    def collect(self) -> Iterator[prometheus_client.core.Metric]:
        """One reading of every queue. Does not raise for what is wrong with one."""
        for family, found in samples(self._paths, self._report):
            metric = self._metric(family)
            for suffix, labels, value in found:
                metric.add_sample(family.name + suffix, dict(labels), value)
            yield metric

    def _metric(self, family: Family) -> prometheus_client.core.Metric:
        return self._family(family.name, family.help, family.kind, family.unit)
