"""Goal: `mpqueue top` tells what is true, on a terminal of any size, and gives the terminal back.

Method: known operations between two looks; the real program on a pipe and on a pseudo-terminal.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.cli import common, top, top_screen

MPQUEUE = [sys.executable, "-P", "-m", "mpqueue", "top"]
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def once(*words: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [*MPQUEUE, "--once", "--json", "--interval", "1ms", *map(str, words)], capture_output=True
    )
    assert (done.returncode, done.stderr) == (code, b"")
    (line,) = done.stdout.splitlines()
    return dict(json.loads(line))


def test_once_as_json_is_what_stats_says(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(segment_size=1 << 16, ack_linger=1000.0)
    q.put_many([b"x" * 1000] * 200, atomic=False)
    with q.consumer() as c:
        items = c.reserve_many(10)
        q.flush()
        found = once(spool)
        (queue,) = found["queues"]
        stats = q.stats()
        (member,) = q.members()
    assert all(not item.settled for item in items)
    assert (found["interval"], queue["queue"], queue["error"]) == (0.001, str(spool), None)
    shown, histogram = queue["stats"], stats.sync_duration_seconds
    assert shown.pop("oldest_ready_age_seconds") > 0
    assert shown.pop("sync_duration_seconds")["count"] == histogram.count
    assert shown == {name: value for name, value in stats._asdict().items() if name in shown}
    assert len(shown) == len(mpqueue.Stats.__annotations__) - 2
    assert set(queue["rates"]) == {*top.RATES, "flushes"}
    assert set(queue["rates"].values()) == {0}
    assert queue["members"] == [{**member._asdict(), "items_per_second": 0}]
    assert queue["flush"]["median_seconds"] <= queue["flush"]["p99_seconds"]
    assert sum(queue["flush"]["buckets"].values()) == queue["flush"]["count"] == histogram.count
    assert queue["flush"]["recent"] is False
    assert queue["max_segments"] == 64


def test_rates_are_what_happened_in_the_time(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(capacity=50)
    before = top.look(str(spool))
    q.put_many([b"x" * 100] * 50)
    assert q.put(b"x", block=False, on_full="drop") is None
    with q.consumer() as c:
        c.ack_many(c.reserve_many(20))
        c.reserve().nack()
    now = top.look(str(spool))
    changed = top.change(before._replace(at=0.0), now._replace(at=2.0))
    assert changed.rates == {
        "items_enqueued": 25,
        "bytes_enqueued": 25 * 160,
        "items_delivered": 10.5,
        "items_acked": 10,
        "items_nacked": 0.5,
        "items_redelivered": 0,
        "items_dropped": 0.5,
        "full": 0.5,
        "flushes": changed.rates["flushes"],
    }
    assert before.stats is not None
    assert now.stats is not None
    old, new = before.stats.sync_duration_seconds, now.stats.sync_duration_seconds
    assert changed.rates["flushes"] == (new.count - old.count) / 2 > 0
    assert changed.recent
    assert changed.flushes is not None
    assert changed.flushes.count == new.count - old.count
    assert list(changed.puts.values()) == [25]
    again = top.change(now, before._replace(at=now.at + 1))  # destroyed and made anew
    assert set(again.rates.values()) == {0}


def test_quantiles_are_bounds_of_buckets() -> None:
    bounds = mpqueue.stats.SYNC_BOUNDS
    counts = (0, 90, 0, 9, *[0] * 15, 1)
    histogram = mpqueue.Histogram(bounds=bounds, counts=counts, count=100, sum=1.0)
    assert [top.quantile(histogram, q) for q in (0.5, 0.9, 0.91, 0.99, 0.999)] == [
        *(bounds[1], bounds[1], bounds[3], bounds[3], float("inf")),
    ]
    empty = mpqueue.Histogram(bounds=bounds, counts=(0,) * 20, count=0, sum=0.0)
    assert top.quantile(empty, 0.5) == 0


def test_the_map_has_a_cell_for_each_segment(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(segment_size=1 << 16, keep_segments=1, max_segments=16, durability="none")

    def cells() -> str:
        now = top.look(str(spool))
        assert now.stats is not None
        live = [segment for segment in now.segments if segment.state != "kept"]
        assert len(live) == now.stats.segments
        assert len(now.segments) - len(live) == now.stats.kept_segments
        text = "\n".join(top_screen.report([top.change(now, now)]))
        (found,) = re.findall(r"segments  (\S+)", text)
        assert len(found) == 16
        return str(found).replace(".", "")

    for _ in range(20):
        q.put(b"x" * 10000)  # 4 a segment
    before = cells()
    assert re.fullmatch(r"####wp?", before)
    with q.consumer() as c:
        items = c.reserve_many(6)
        assert cells() == "rr##" + before[4:]
        c.ack_many(items)
        c.checkpoint()
        assert re.fullmatch(r"##" + re.escape(before[3:]) + "k", cells())
    assert {segment.state for segment in top.look(str(spool)).segments} <= set(top_screen.CELLS)


@pytest.mark.crash
def test_the_dead_are_shown_as_dead(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    pid = os.fork()
    if pid == 0:
        q.put_many([b"x"] * 7)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    members = {member["pid"]: member for member in once(spool)["queues"][0]["members"]}
    assert {found: member["alive"] for found, member in members.items()} == {
        pid: False,
        os.getpid(): True,
    }
    assert members[pid]["items_enqueued"] == 7
    now = top.look(str(spool))
    lines = top_screen.report([top.change(now, now)])
    (line,) = (line for line in lines if f" {pid} " in line)
    assert " dead " in line


def test_what_cannot_be_read_is_told_in_its_place(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_queue()
    missing = spool.parent / "missing"
    good, bad = once(spool, missing)["queues"]
    assert (good["live"], bad["live"], good["error"]) == (True, False, None)
    assert str(missing) in bad["error"]
    once(missing, code=1)
    (spool / "control").unlink()
    assert once(spool)["queues"] == [{"queue": str(spool), "error": None, "live": False}]


def test_lines_fit_and_names_cannot_steer_the_terminal(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(max_segments=8000, segment_size=1 << 16)
    q.put_many([b"x" * 30000] * 20, atomic=False)
    q.seal()
    now = top.look(str(spool))
    evil = now.members[0]._asdict() | {"command": "\x1b[2Jevil\n\r"}
    now = now._replace(queue="/\x1b]0;evil\x07\n", members=[mpqueue.Member(**evil)])
    bad = top.look(str(spool.parent / "\x1b[2J"))
    for columns in (1, 2, 20, 60, 80, 200):
        lines = top_screen.report([top.change(now, now), top.change(bad, bad)], columns)
        assert max(map(len, lines)) <= columns
        assert all(line.isascii() and (line.isprintable() or not line) for line in lines)


# ---- on a pipe


def test_on_a_pipe_there_is_one_report_after_another(open_queue: OpenQueue, spool: Path) -> None:
    open_queue().put(b"x")
    with subprocess.Popen(
        [*MPQUEUE, spool, "--interval", "1ms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reports = 0
        while reports < 3:
            line = process.stdout.readline()
            assert line
            assert b"\x1b" not in line
            reports += b"depth 1 " in line
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "x"], []])
def test_what_cannot_be_is_refused(words: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MPQUEUE_")}
    paths = ["spool"] if words else []
    done = subprocess.run([*MPQUEUE, *paths, *words], capture_output=True, env=env)
    assert done.returncode == common.USAGE


def test_looking_changes_nothing(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    q.put(b"x")
    before = {file.name: file.stat().st_mtime_ns for file in spool.iterdir()}, q.members()
    once(spool)
    assert ({file.name: file.stat().st_mtime_ns for file in spool.iterdir()}, q.members()) == before
    with q.consumer():
        once(spool)
    q.close()
    assert once(spool)["queues"][0]["stats"]["members_alive"] == 0


# ---- on a terminal


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, spool: Path, columns: int, rows: int) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            [*MPQUEUE, spool, "--interval", "1h"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern: bytes) -> bytes:
        """Everything up to the pattern, and no more of what came."""
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            self.seen += os.read(self.master, 4096)
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def screen(self) -> list[str]:
        """The next one that is drawn, line by line, without colours."""
        text = self.until(rb"\x1b\[H.*?\x1b\[J").rpartition(b"\x1b[H")[2].decode()
        return [re.sub(r"\x1b\[[0-9;]*[mKJ]", "", line) for line in text.split("\r\n")]

    def ended(self, code: int) -> None:
        """It has given the terminal back as it was."""
        self.until(re.escape(LEAVE))
        assert self.process.wait(60) == code
        assert termios.tcgetattr(self.slave) == self.mode
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""


@pytest.fixture
def terminal(open_queue: OpenQueue, spool: Path) -> Iterator[Callable[[int, int], Terminal]]:
    open_queue().put_many([b"x"] * 1234)
    made: list[Terminal] = []

    def start(columns: int, rows: int) -> Terminal:
        made.append(Terminal(spool, columns, rows))
        return made[-1]

    yield start
    for found in made:
        if found.process.poll() is None:
            found.process.kill()
        found.process.communicate()
        os.close(found.master)
        os.close(found.slave)


def test_it_draws_follows_the_size_and_ends_with_q(
    terminal: Callable[[int, int], Terminal], spool: Path
) -> None:
    window = terminal(100, 30)
    window.until(re.escape(ENTER))
    lines = window.screen()
    assert lines[0].startswith("mpqueue top")
    assert str(spool) in lines
    assert any("depth 1,234" in line for line in lines)
    assert not termios.tcgetattr(window.slave)[3] & termios.ICANON
    window.screen()  # the first rates; the next ones come in an hour
    window.resize(40, 8)
    window.process.send_signal(signal.SIGWINCH)
    lines = window.screen()
    assert len(lines) == 8
    assert max(map(len, lines)) <= 40
    assert lines[-1].endswith("lines more")
    os.write(window.master, b"xq")
    window.ended(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(
    terminal: Callable[[int, int], Terminal], number: int
) -> None:
    window = terminal(80, 24)
    window.screen()
    window.process.send_signal(number)
    window.ended(128 + number)


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(
    terminal: Callable[[int, int], Terminal],
) -> None:
    window = terminal(80, 24)
    window.screen()
    window.process.send_signal(signal.SIGTSTP)
    window.until(re.escape(LEAVE))
    _, status = os.waitpid(window.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert termios.tcgetattr(window.slave) == window.mode
    window.process.send_signal(signal.SIGCONT)
    window.until(re.escape(ENTER))
    window.screen()
    os.write(window.master, b"q")
    window.ended(0)
