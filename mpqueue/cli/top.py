"""`mpqueue top`: what queues do now, again and again. It only looks, and is no member itself."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mpqueue
from mpqueue import metrics, reader
from mpqueue.cli import common
from mpqueue.cli.stats import histogram_json
from mpqueue.reader.stats import SegmentState, read_members, read_segments, read_stats

RATES = (
    "items_enqueued",
    "bytes_enqueued",
    "items_delivered",
    "items_acked",
    "items_nacked",
    "items_redelivered",
    "items_dropped",
    "full",
)
"""Fields of Stats whose growth a second is shown; flushes come from the histogram."""


class Look(NamedTuple):
    """One queue at one moment. `stats` is None when it was not opened since the last boot."""

    queue: str
    at: float
    error: str
    stats: mpqueue.Stats | None
    options: Mapping[str, Any]
    members: list[mpqueue.Member]
    segments: list[SegmentState]


class Change(NamedTuple):
    """One queue now, and what changed since the look before. `rates` are a second."""

    now: Look
    rates: Mapping[str, float]
    flushes: mpqueue.Histogram | None
    """Those of this time, or of always when there were none."""
    recent: bool
    puts: Mapping[int, float]
    """Items a second by incarnation of the member."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_paths(parser)
    parser.add_argument("--once", action="store_true", help="one report, then end")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_interval,
        default=1.0,
        help="time between two looks, over which rates are taken (default: 1s)",
    )


def run(args: argparse.Namespace) -> int:
    """A screen on a terminal, until q or a signal; else one report after another."""
    from mpqueue.cli import top_screen

    paths = list({metrics.label(path): path for path in args.paths}.values())
    if not (args.once or args.json) and top_screen.usable():
        top_screen.show(paths, args.interval)
        return common.OK
    before = [look(path) for path in paths]
    while True:
        time.sleep(args.interval)
        now = [look(path) for path in paths]
        changes = [change(old, new) for old, new in zip(before, now, strict=True)]
        if args.json:
            print(json.dumps(document(changes, args.interval)), flush=True)
        else:
            print("\n".join(top_screen.report(changes)), flush=True)
        if args.once:
            return common.OK if any(not found.error for found in now) else common.EMPTY
        before = now


def look(path: str) -> Look:
    """Reads one queue; never raises for what is wrong with it."""
    queue = metrics.label(path)
    try:
        return look_well(path)
    except (mpqueue.MpqueueError, OSError, ValueError) as error:
        text = str(error) or type(error).__name__
        return Look(queue, time.monotonic(), text, None, {}, [], [])


def look_well(path: str) -> Look:
    """Reads one queue. Raises NotAQueue, FormatError, OSError."""
    with reader.inspect(path) as view:
        return Look(
            metrics.label(path),
            time.monotonic(),
            "",
            read_stats(view),
            view.options,
            read_members(view),
            read_segments(view),
        )


def change(before: Look, now: Look) -> Change:
    """Rates between two looks; 0 for what began anew in between, as after destroy or a reboot."""
    if now.stats is None:
        return Change(now, {}, None, False, {})
    seconds = max(now.at - before.at, 1e-9)
    flushes, recent = now.stats.sync_duration_seconds, False
    rates = dict.fromkeys((*RATES, "flushes"), 0.0)
    if before.stats is not None:
        for name in RATES:
            rates[name] = max(0, getattr(now.stats, name) - getattr(before.stats, name)) / seconds
        new = _since(before.stats.sync_duration_seconds, flushes)
        rates["flushes"] = new.count / seconds
        if new.count:
            flushes, recent = new, True
    had = {member.incarnation: member.items_enqueued for member in before.members}
    puts = {
        member.incarnation: max(0, member.items_enqueued - had.get(member.incarnation, 0)) / seconds
        for member in now.members
    }
    return Change(now, rates, flushes, recent, puts)


def _since(old: mpqueue.Histogram, new: mpqueue.Histogram) -> mpqueue.Histogram:
    counts = tuple(max(0, b - a) for a, b in zip(old.counts, new.counts, strict=True))
    return mpqueue.Histogram(
        bounds=new.bounds, counts=counts, count=sum(counts), sum=max(0.0, new.sum - old.sum)
    )


def quantile(histogram: mpqueue.Histogram, share: float) -> float:
    """Upper bound, seconds, of the bucket in which that share of all is reached; 0 when empty."""
    total, reached = sum(histogram.counts), 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        reached += count
        if total and reached >= share * total:
            return bound
    return 0.0


def document(changes: Sequence[Change], interval: float) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "time": time.time(),
        "interval": interval,
        "queues": [_json(changed) for changed in changes],
    }


def _json(changed: Change) -> dict[str, Any]:
    now, found = changed.now, changed.flushes
    result: dict[str, Any] = {"queue": now.queue, "error": now.error or None}
    result["live"] = now.stats is not None
    if now.stats is None or found is None:
        return result
    stats: dict[str, Any] = now.stats._asdict()
    stats["sync_duration_seconds"] = histogram_json(now.stats.sync_duration_seconds)
    result["stats"] = stats
    result["rates"] = dict(changed.rates)
    result["flush"] = {
        "recent": changed.recent,
        "median_seconds": _finite(quantile(found, 0.5)),
        "p99_seconds": _finite(quantile(found, 0.99)),
        **histogram_json(found),
    }
    result["members"] = [
        {**member._asdict(), "items_per_second": changed.puts[member.incarnation]}
        for member in now.members
    ]
    result["segments"] = [segment._asdict() for segment in now.segments]
    result["max_segments"] = now.options["max_segments"]
    return result


def _finite(bound: float) -> float | None:
    """JSON has no infinity: null is above all bounds."""
    return None if bound == float("inf") else bound


def _interval(text: str) -> float:
    seconds = common.duration(text)
    if not 0.001 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1ms to 1d")
    return seconds
