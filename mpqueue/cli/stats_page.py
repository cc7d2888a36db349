"""One static page about a queue: numbers, and drawings as inline SVG. No script, nothing loaded."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Iterator

import mpqueue
from mpqueue.cli import common, top, top_screen

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --dim: #64748b; --line: #d8dee6; --bad: #b42318;
  --paper: #fff; --a: #2f6fde; --b: #93b7f2; --c: #f2a93b; --d: #c9d1db; --e: #2e9e6b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf1; --dim: #94a3b8; --line: #334155;
  --bad: #ff8a80; --paper: #0f1720; --a: #6aa1ff; --b: #3b5f9e; --d: #475569; --e: #55c896; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; overflow-wrap: anywhere; margin: 0; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .dim { color: var(--dim); } .bad { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1rem 0; }
dl div { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .75rem; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-size: 1.25rem; }
svg { display: block; width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--dim); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--dim); } th:first-child, td:first-child { text-align: left; }
td { overflow-wrap: anywhere; } .wide { overflow-x: auto; }
"""
_WIDTH = 880
_FATES = (
    ("acked", "items_acked", "--e"),
    ("skipped", "items_skipped", "--d"),
    ("lost or gaps", "", "--bad"),
    ("in hand", "reserved_items", "--c"),
    ("ready", "ready_items", "--a"),
    ("due later", "scheduled_items", "--b"),
)
_CELLS = {
    "settled": "--d",
    "reserved": "--c",
    "ready": "--a",
    "written": "--e",
    "prepared": "--b",
    "kept": "--line",
    "damaged": "--bad",
}
_CELLS_MAX = 1024


def page(now: top.Look) -> str:
    """The page's text. What comes from outside, names and paths, is escaped."""
    return "\n".join(_lines(now)) + "\n"


def _lines(now: top.Look) -> Iterator[str]:
    title = html.escape(common.shown(now.queue))
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    yield f'<p class="dim">mpqueue {html.escape(str(mpqueue.__version__))}, {when}</p>'
    if now.stats is None:
        why = now.error or "nobody has opened it since the machine started"
        yield f'<p class="bad">{html.escape(common.shown(why))}</p></body></html>'
        return
    for flag, text in top_screen.alarms(now.stats):
        if flag:
            yield f'<p class="bad">{html.escape(text)}</p>'
    yield from _tiles(now.stats)
    yield from _fates(now.stats)
    yield from _flushes(now.stats)
    yield from _segments(now)
    yield from _members(now)
    yield from _all(now)
    yield "</body></html>"


def _tiles(stats: mpqueue.Stats) -> Iterator[str]:
    age = common.human_time(stats.oldest_ready_age_seconds) if stats.depth else "-"
    room = f"{stats.backlog_bytes / max(1, stats.capacity_bytes):.0%}"
    yield "<dl>"
    for name, value in (
        ("items owed", f"{stats.depth:,}"),
        ("ready", f"{stats.ready_items:,}"),
        ("in hand", f"{stats.reserved_items:,}"),
        ("oldest", age),
        ("room used", room),
        ("a power cut takes", f"{stats.unsynced_items:,}"),
        ("policy", stats.durability),
        ("disk", common.human_bytes(stats.disk_bytes)),
    ):
        yield f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>"
    yield "</dl>"


def _fates(stats: mpqueue.Stats) -> Iterator[str]:
    """Where the items of the queue's whole life are: one bar."""
    parts = []
    for name, field, colour in _FATES:
        count = getattr(stats, field) if field else stats.lost_items + stats.claim_gaps
        if count:
            parts.append((name, count, colour))
    total = sum(count for _, count, _ in parts)
    yield f"<h2>Where items are, {stats.items_enqueued:,} in all its life</h2>"
    if not total:
        yield '<p class="dim">nothing was put yet</p>'
        return
    yield f'<svg viewBox="0 0 {_WIDTH} 28" role="img" aria-label="where the items are">'
    at = 0.0
    for name, count, colour in parts:
        width = _WIDTH * count / total
        yield (
            f'<rect x="{at:.2f}" width="{width:.2f}" height="28" fill="var({colour})">'
            f"<title>{name}: {count:,}</title></rect>"
        )
        at += width
    yield "</svg>"
    yield _legend((f"{name} {count:,}", colour) for name, count, colour in parts)


def _flushes(stats: mpqueue.Stats) -> Iterator[str]:
    found = stats.sync_duration_seconds
    yield f"<h2>How long flushes took, {found.count:,} of them</h2>"
    if not found.count:
        yield '<p class="dim">nothing was flushed yet</p>'
        return
    half, most = (_bound(top.quantile(found, share)) for share in (0.5, 0.99))
    yield f"<p>half of them {half}, 99% {most}; {common.human_time(found.sum)} in all</p>"
    step, height, high = _WIDTH / len(found.counts), 120, max(found.counts)
    yield f'<svg viewBox="0 0 {_WIDTH} {height + 18}" role="img" aria-label="flush times">'
    for place, (bound, count) in enumerate(zip(found.bounds, found.counts, strict=True)):
        tall = max(1.0, height * count / high) if count else 0.0
        yield (
            f'<rect x="{place * step + 2:.1f}" y="{height - tall:.1f}" width="{step - 4:.1f}" '
            f'height="{tall:.1f}" fill="var(--a)"><title>{_bound(bound)}: {count:,}</title></rect>'
        )
        if place % 2 == 0:
            middle = place * step + step / 2
            text = _bound(bound).removeprefix("&lt; ")
            yield f'<text x="{middle:.1f}" y="{height + 14}" text-anchor="middle">{text}</text>'
    yield f'<rect y="{height}" width="{_WIDTH}" height="1" fill="var(--line)"/></svg>'


def _segments(now: top.Look) -> Iterator[str]:
    free = max(0, int(now.options["max_segments"]) - len(now.segments))
    yield f"<h2>Segment files: {len(now.segments)}, room for {free} more</h2>"
    size, gap, row = 14, 3, 51
    shown = now.segments[:_CELLS_MAX]
    count = min(len(shown) + free, _CELLS_MAX)
    tall = -(-count // row) * (size + gap)
    yield f'<svg viewBox="0 0 {_WIDTH} {tall}" role="img" aria-label="segment files">'
    for place in range(count):
        x, y = place % row * (size + gap), place // row * (size + gap)
        box = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="2"'
        if place < len(shown):
            found = shown[place]
            text = f"{found.generation}: {found.state}, {common.human_bytes(found.bytes)}"
            yield f'{box} fill="var({_CELLS[found.state]})"><title>{text}</title></rect>'
        else:
            yield f'{box} fill="none" stroke="var(--line)"/>'
    yield "</svg>"
    states = {segment.state for segment in shown}
    yield _legend((name, colour) for name, colour in _CELLS.items() if name in states)


def _members(now: top.Look) -> Iterator[str]:
    yield f"<h2>Attached or gone: {len(now.members)}</h2>"
    yield '<div class="wide"><table><tr>'
    names = ("command", "pid", "role", "state", "put", "no room", "waits", "flushes", "unsynced")
    yield "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    for member in sorted(now.members, key=lambda m: (not m.alive, not m.consumer, m.incarnation)):
        cells = (
            html.escape(common.shown(member.command)),
            str(member.pid),
            "consumer" if member.consumer else "producer",
            "alive" if member.alive else "gone",
            *(f"{n:,}" for n in (member.items_enqueued, member.full, member.waits, member.flushes)),
            common.human_bytes(member.unsynced_bytes),
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"


def _all(now: top.Look) -> Iterator[str]:
    assert now.stats is not None
    yield "<h2>All numbers</h2><table>"
    for name, value in now.stats._asdict().items():
        if isinstance(value, mpqueue.Histogram):
            continue
        text = f"{value:,}" if isinstance(value, int) and value is not True else str(value)
        yield f"<tr><td>{name}</td><td>{html.escape(text)}</td></tr>"
    yield "</table>"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    boxes = (
        f'<svg viewBox="0 0 10 10" style="display:inline;width:.7em" aria-hidden="true">'
        f'<rect width="10" height="10" rx="2" fill="var({colour})"/></svg> {html.escape(text)}'
        for text, colour in entries
    )
    return f'<p class="dim">{"&ensp; ".join(boxes)}</p>'


def _bound(seconds: float) -> str:
    if seconds == float("inf"):
        return "above 4 s"
    return f"&lt; {common.human_time(seconds)}"
