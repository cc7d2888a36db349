"""What `mpqueue top` shows: lines of text, and the terminal on which they are drawn again.

Plain ASCII and ANSI sequences, no curses. A change of the window's size draws at once; Ctrl-Z gives
the terminal back until `fg`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

import mpqueue
from mpqueue.cli import common, top

CELLS = {
    "settled": "s",
    "reserved": "r",
    "ready": "#",
    "written": "w",
    "prepared": "p",
    "kept": "k",
    "damaged": "!",
    "free": ".",
}
_CELLS_MAX = 512
_SHADES = " .:-=+*#%@"
_BOLD, _RED, _GREEN, _DIM = "1", "31", "32", "2"


# ---- text ---------------------------------------------------------------------------------------


def report(changes: Sequence[top.Change], columns: int = 100) -> list[str]:
    """All queues as lines of at most `columns` characters, colours not counted."""
    lines: list[str] = []
    for changed in changes:
        lines += _queue(changed, columns)
        lines.append("")
    return lines


def _queue(changed: top.Change, columns: int) -> Iterator[str]:
    now = changed.now
    yield from _wrapped(columns, "", now.queue, _BOLD)
    stats, found = now.stats, changed.flushes
    if now.error:
        yield from _wrapped(columns, "  ", now.error, _RED)
        return
    if stats is None or found is None:
        yield from _wrapped(columns, "  ", "nobody has opened it since the machine started")
        return
    for flag, text in alarms(stats):
        if flag:
            yield from _wrapped(columns, "  ", text, _RED)
    rates = changed.rates
    yield from _fit(
        columns,
        "put",
        f"{_rate(rates['items_enqueued'])} ({common.human_bytes(rates['bytes_enqueued'])}/s)",
        f"handed out {_rate(rates['items_delivered'])}",
        f"acked {_rate(rates['items_acked'])}",
        f"given back {_rate(rates['items_nacked'])}",
        f"no room {_rate(rates['full'])}",
        f"dropped {_rate(rates['items_dropped'])}",
    )
    yield from _fit(
        columns,
        "now",
        f"depth {stats.depth:,}",
        f"ready {stats.ready_items:,}",
        f"in hand {stats.reserved_items:,}",
        f"oldest {common.human_time(stats.oldest_ready_age_seconds) if stats.depth else '-'}",
        f"a power cut takes {stats.unsynced_items:,} ({stats.durability})",
    )
    share = min(1.0, stats.backlog_bytes / max(1, stats.capacity_bytes))
    yield from _fit(
        columns,
        "room",
        f"[{'#' * round(20 * share):<20}] {share:.0%}",
        f"{common.human_bytes(stats.backlog_bytes)} of {common.human_bytes(stats.capacity_bytes)}",
        f"disk {common.human_bytes(stats.disk_bytes)}",
    )
    yield from _fit(
        columns,
        "flush",
        f"{_rate(rates['flushes'])}",
        f"16 us [{_bars(found.counts)}] above 4 s",
        *(f"{name} {_bound(top.quantile(found, q))}" for name, q in (("half", 0.5), ("99%", 0.99))),
        "in this time" if changed.recent else "in all its life",
    )
    yield from _segments(now, columns)
    yield from _members(changed, columns)


def alarms(stats: mpqueue.Stats) -> Iterable[tuple[bool, str]]:
    """What should not be, each with whether it is."""
    yield stats.poisoned, f"poisoned: a flush failed ({os.strerror(stats.poison_errno)})"
    yield stats.fault, "fault: a bug or a broken promise of the kernel; puts are refused"
    yield stats.sealed, "sealed: no more puts"
    yield stats.lost_items > 0, f"items found damaged, ever: {stats.lost_items:,}"
    yield not stats.consumer_attached, "no consumer"
    pid = stats.blocked_on_claim
    yield pid != 0, f"process {pid} stands in the middle of a put, the consumer waits for it"
    yield stats.blocked_on_window, "the oldest item in hand holds all acks up"


def _segments(now: top.Look, columns: int) -> Iterator[str]:
    cells = "".join(CELLS[segment.state] for segment in now.segments)
    cells += CELLS["free"] * (int(now.options["max_segments"]) - len(cells))
    more = len(cells) - _CELLS_MAX
    name = f"{'segments':>9}  "
    width = max(20, columns - len(name))
    for start in range(0, min(len(cells), _CELLS_MAX), width):
        row = cells[start : min(start + width, _CELLS_MAX)]
        yield ((name if start == 0 else " " * len(name)) + row)[:columns]
    if more > 0:
        yield f"{'':>9}  and {more:,} more"[:columns]
    used = [name for name, cell in CELLS.items() if cell in cells]
    yield _paint(f"{'':>9}  {', '.join(f'{CELLS[n]} {n}' for n in used)}"[:columns], _DIM)


def _members(changed: top.Change, columns: int) -> Iterator[str]:
    """The consumer first, then the living by what they put, then the dead."""
    members = sorted(
        changed.now.members,
        key=lambda m: (not m.alive, not m.consumer, -changed.puts[m.incarnation], m.incarnation),
    )
    yield f"{'members':>9}  {'pid':>8}  {'command':<15}  {'role':<8}  state  {'put/s':>9}  put"[
        :columns
    ]
    for member in members:
        text = (
            f"{'':>9}  {member.pid:>8}  {_clean(member.command):<15}  "
            f"{'consumer' if member.consumer else 'producer'}  "
            f"{'alive' if member.alive else 'dead':<5}  "
            f"{changed.puts[member.incarnation]:>9,.0f}  {member.items_enqueued:,}"
        )
        yield text[:columns] if member.alive else _paint(text[:columns], _RED)


def _fit(columns: int, name: str, *parts: str) -> Iterator[str]:
    """A line of parts; what does not fit goes on in the next one."""
    line = f"{name:>9}"
    for part in parts:
        if len(line) + 2 + len(part) > columns and line.strip():
            yield line[:columns]
            line = " " * 9
        line += f"  {part}"
    yield line[:columns]


def _wrapped(columns: int, indent: str, text: str, code: str = "") -> Iterator[str]:
    """A sentence or a path, which has no end that may be cut off."""
    before = indent if columns > len(indent) else ""
    for line in textwrap.wrap(_clean(text), columns - len(before), break_on_hyphens=False):
        yield _paint(before + line, code) if code else before + line


def _bars(counts: Sequence[int]) -> str:
    most = max(counts)
    steps = len(_SHADES) - 1
    return "".join(_SHADES[-(-steps * count // most) if most else 0] for count in counts)


def _bound(seconds: float) -> str:
    if seconds == float("inf"):
        return "above 4 s"
    return f"< {common.human_time(seconds)}" if seconds else "-"


def _rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def _clean(text: str) -> str:
    """Names may hold anything, also what a terminal obeys."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def _paint(text: str, code: str) -> str:
    return common.colour(text, code)


# ---- terminal -----------------------------------------------------------------------------------


def usable() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


def show(paths: Sequence[str], interval: float) -> None:
    """Draws until q is pressed, or a signal raises."""
    with _Screen() as screen:
        before = [top.look(path) for path in paths]
        changes = [top.change(old, old) for old in before]
        due = time.monotonic() + min(interval, 0.2)  # the first rates come soon
        while True:
            screen.draw(changes, interval)
            if screen.wait(due - time.monotonic()):
                return
            if time.monotonic() >= due:
                now = [top.look(path) for path in paths]
                changes = [top.change(old, new) for old, new in zip(before, now, strict=True)]
                before = now
                due = time.monotonic() + interval


class _Screen:
    """The terminal while it is ours: other screen, no cursor, keys without Enter."""

    def __enter__(self) -> _Screen:
        self._keys = sys.stdin.isatty()
        self._resized, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, self._stop),
        }
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._resized)
        os.close(self._waker)

    def draw(self, changes: Sequence[top.Change], interval: float) -> None:
        """All that fits, from the top."""
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        clock = time.strftime("%H:%M:%S")
        head = f"mpqueue top  {clock}  every {common.human_time(interval)}  q ends"
        lines = [_paint(head[:columns], _DIM), *report(changes, columns)]
        if len(lines) > rows:
            lines = [
                *lines[: rows - 1],
                _paint(f"and {len(lines) - rows + 1} lines more"[:columns], _DIM),
            ]
        sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def wait(self, seconds: float) -> bool:
        """Until the time is over, a key is pressed or the size changes. True to end."""
        watched = [self._resized, *([sys.stdin.fileno()] if self._keys else [])]
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._resized in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._resized, 512):
                    pass
        if sys.stdin.fileno() in ready:
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys:
                self._keys = False  # the terminal has gone, or is at its end
            return b"q" in keys or b"Q" in keys
        return False

    def _take(self) -> None:
        if self._keys:
            self._mode = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        sys.stdout.flush()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()
        if self._keys:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._mode)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
