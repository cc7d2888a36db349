"""`mpqueue stats`: counters and gauges of a queue, without the consumer role."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mpqueue._words import count
from mpqueue.cli import common

if TYPE_CHECKING:
    import mpqueue


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of them as JSON")
    form.add_argument(
        "--html", metavar="FILE", help="one page with drawings, which replaces FILE in one step"
    )


def run(args: argparse.Namespace) -> int:
    """Joins, and reads shared counters; where that is not allowed, it reads them from outside.

    With no control of this boot to read them from, the files are counted instead.
    """
    if args.html is not None:
        from mpqueue.cli import stats_page, top

        common.replace_file(args.html, stats_page.page(top.look_well(args.path)))
        return common.OK
    try:
        with common.open_queue(args.path) as queue:
            members = queue.members()
            others = [member for member in members if member.incarnation != queue.incarnation]
            stats = _document(queue.stats(), queue.options._asdict(), others)
            # This command looks, and is gone; where the table is full it has no entry.
            stats["members_alive"] -= len(members) - len(others)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        stats = _from_outside(args.path, error)
    if args.json:
        common.print_json(stats)
        return common.OK
    rows: list[tuple[str, Any]] = []
    for name, value in stats.items():
        if name == "sync_duration_seconds":
            rows.append(("flushes", value["count"]))
            rows.append(("flush_seconds", round(value["sum"], 3)))
        elif name == "options":
            rows += [(f"option {key}", _option(key, text)) for key, text in value.items()]
        elif name == "attached":
            rows += [(f"member {member['pid']}", _member(member)) for member in value]
        elif "bytes" in name and isinstance(value, int):
            rows.append((name, f"{value} ({common.human_bytes(value)})"))
        else:
            rows.append((name, value))
    common.table(rows)
    return common.OK


_TROUBLES = {
    "full": "found no room",
    "items_dropped": "dropped",
    "flushes": "flushes",
    "lock_waits": "waits for the lock",
}


def _option(name: str, value: object) -> object:
    if name == "mode":
        return f"{value:04o}"
    return "none" if value is None else value


def _member(member: Mapping[str, Any]) -> str:
    state = "alive" if member["alive"] else "dead"
    role = "consumer" if member["consumer"] else "producer"
    text = f"{member['command']}, {role}, {state}, put {count(member['items_enqueued'], 'item')}"
    for name, words in _TROUBLES.items():
        if member.get(name):  # absent where files were counted instead
            text += f", {words} {member[name]}"
    return text


def histogram_json(histogram: mpqueue.Histogram) -> dict[str, Any]:
    """Buckets by upper bound in seconds; JSON has no infinity, so the last one is "inf"."""
    bounds = [str(bound) for bound in histogram.bounds]
    return {
        "count": histogram.count,
        "sum": histogram.sum,
        "buckets": dict(zip(bounds, histogram.counts, strict=True)),
    }


def _document(
    now: mpqueue.Stats, options: Mapping[str, Any], members: Iterable[mpqueue.Member]
) -> dict[str, Any]:
    return {
        **now._asdict(),
        "sync_duration_seconds": histogram_json(now.sync_duration_seconds),
        "options": dict(options),
        "attached": [member._asdict() for member in members],
    }


def _from_outside(path: str, refusal: OSError) -> dict[str, Any]:
    from mpqueue.reader import inspect
    from mpqueue.reader.stats import read_members, read_stats

    with inspect(path) as view:
        now = read_stats(view)
        if now is not None:
            return _document(now, view.options, read_members(view))
        common.say(f"{refusal}; nobody has opened it since the machine started: counting the files")
        return {
            **view.counters,
            **view.counts()._asdict(),
            "floor": view.acks.floor,
            "options": dict(view.options),
            "attached": [
                {
                    "pid": member.pid,
                    "command": member.command,
                    "consumer": member.role == "consumer",
                    "alive": member.alive,
                    "items_enqueued": member.enqueued_items,
                }
                for member in view.members
            ],
        }
