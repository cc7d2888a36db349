"""Goal: files of items that are taken away while nobody looks are counted, told once, exactly.

Method: a closed queue loses all segments, the first, the middle, the last or parts of them; control
is kept, of another boot, deleted, or also the cursor; then it is opened or repaired. What was put
is what is delivered and what is counted as lost, together; the next opening finds nothing more.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import mpqueue
from mpqueue.reader import verify

COUNT = 400
BODY = 900


def _fill(path: Path, acked: int) -> None:
    """COUNT durable items in about seven segments; some of the first ones acked."""
    with mpqueue.Queue(path, segment_size=1 << 16, durability="none") as q, q.consumer() as c:
        for n in range(COUNT):
            q.put(b"%06d" % n * (BODY // 6))
        q.flush()
        if acked:
            items = c.reserve_many(acked + 5)
            c.ack_many(items[5:])  # five returned ones stay at the floor
            c.checkpoint()


MISSING = ["all removed", "all empty", "first", "middle", "two in the middle", "last"]
HARMS = [*MISSING, "cut", "cut end"]


def _harm(path: Path, how: str) -> None:
    files = sorted(path.glob("segment-*"))
    assert len(files) > 5
    held = [file for file in files if file.read_bytes()[16384:].strip(b"\0")]
    if how == "all removed":
        for file in files:
            file.unlink()
    elif how == "all empty":
        for file in files:
            os.truncate(file, 0)
    elif how == "first":
        held[0].unlink()
    elif how == "middle":
        held[3].unlink()
    elif how == "two in the middle":
        held[3].unlink()
        os.truncate(held[4], 0)
    elif how == "last":
        held[-1].unlink()
    elif how == "cut":
        os.truncate(held[2], 30_000)
    else:
        os.truncate(held[-1], 20_000)


def _forget(path: Path, control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if control == "another boot":
        monkeypatch.setenv("MPQ_BOOT_ID", "another boot")
    elif control == "missing":
        (path / "control").unlink()


def _take_all(path: Path) -> tuple[set[int], int, mpqueue.Stats]:
    """What is delivered, how many losses were told, and the counters afterwards."""
    told: list[mpqueue.Corrupt] = []
    with mpqueue.Queue(path, on_loss=told.append) as q, q.consumer() as c:
        got = {int(item.body[:6]) for item in c.drain()}
        now = q.stats()
        assert len(q) == 0
    return got, sum(loss.lost_items for loss in told), now


@pytest.mark.parametrize("control", ["kept", "another boot", "missing"])
@pytest.mark.parametrize("acked", [0, 100])
@pytest.mark.parametrize("how", HARMS)
def test_files_taken_away_are_counted_exactly_and_once(
    tmp_path: Path, how: str, acked: int, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spool"
    _fill(path, acked)
    _harm(path, how)
    _forget(path, control, monkeypatch)
    looked = verify(path)
    got, told, now = _take_all(path)
    assert looked.damage and looked.counts.lost == now.lost_items
    assert got <= set(range(COUNT)) - set(range(5, 5 + acked))
    assert now.lost_items == told == COUNT - acked - len(got) > 0
    with mpqueue.Queue(path) as q:
        q.put(b"next")
    again, told, later = _take_more(path)
    assert again == [b"next"] and told == 0 and later.lost_items == now.lost_items


def _take_more(path: Path) -> tuple[list[bytes], int, mpqueue.Stats]:
    told: list[mpqueue.Corrupt] = []
    with mpqueue.Queue(path, on_loss=told.append) as q, q.consumer() as c:
        got = [item.body for item in c.drain()]
        return got, sum(loss.lost_items for loss in told), q.stats()


@pytest.mark.parametrize("control", ["kept", "another boot", "missing"])
@pytest.mark.parametrize("how", HARMS)
def test_repair_counts_them_and_leaves_nothing_to_report(
    tmp_path: Path, how: str, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spool"
    _fill(path, 100)
    _harm(path, how)
    _forget(path, control, monkeypatch)
    dry = mpqueue.repair(path, dry_run=True)
    report = mpqueue.repair(path)
    got, told, now = _take_all(path)
    lost = COUNT - 100 - len(got)
    assert report.lost_items == dry.lost_items == now.lost_items == lost
    assert told == 0
    with mpqueue.Queue(path) as q:
        q.put(b"next")
    again, told, later = _take_more(path)
    assert again == [b"next"] and told == 0 and later.lost_items == lost
    assert mpqueue.repair(path).lost_items == 0


def test_loss_across_epochs_is_counted_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reboot skips a million numbers; they are nobody's, whatever is missing."""
    path = tmp_path / "spool"
    for boot in range(4):
        monkeypatch.setenv("MPQ_BOOT_ID", f"boot {boot}")
        with mpqueue.Queue(path, segment_size=1 << 16) as q:
            for n in range(50):
                q.put(b"%06d" % (boot * 50 + n))
            with q.consumer() as c:
                for item in c.reserve_many(10):
                    item.ack()
    for file in sorted(path.glob("segment-*"))[2:]:
        file.unlink()
    monkeypatch.setenv("MPQ_BOOT_ID", "the last boot")
    got, told, now = _take_all(path)
    assert len(got) + told == 160 and told == now.lost_items == 100
    assert now.items_enqueued == 200
    assert now.recoveries == 4


def test_nothing_says_how_much_it_was(tmp_path: Path) -> None:
    """Never a consumer, control gone with the segments: one item stands for the unknown number."""
    path = tmp_path / "spool"
    with mpqueue.Queue(path, segment_size=1 << 16) as q:
        q.put_many(b"%06d" % n for n in range(COUNT))
    for file in [*path.glob("segment-*"), path / "control"]:
        file.unlink()
    got, told, now = _take_all(path)
    assert (got, told, now.lost_items) == (set(), 1, 1)
    assert _take_all(path)[1] == 0


@pytest.mark.parametrize("control", ["kept", "another boot", "missing"])
@pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])
def test_nothing_is_charged_when_all_was_acked(
    tmp_path: Path, durability: str, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spool"
    with mpqueue.Queue(path, segment_size=1 << 16, durability=durability) as q, q.consumer() as c:
        q.put_many(b"%06d" % n for n in range(COUNT))
        assert len(list(c.drain())) == COUNT
        c.checkpoint()
    for file in path.glob("segment-*"):
        file.unlink()
    _forget(path, control, monkeypatch)
    got, told, now = _take_all(path)
    assert (got, told, now.lost_items) == (set(), 0, 0)


def _killed(path: Path, durability: str) -> list[Path]:
    """Accepted by a process that never flushed or closed. Returns the segments."""
    child = os.fork()
    if child == 0:
        try:
            q = mpqueue.Queue(path, segment_size=1 << 16, durability=durability, interval=3600.0)
            for n in range(30):
                q.put(b"%06d" % n * 1500)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return sorted(path.glob("segment-*"))


def _spoil(files: list[Path], how: str) -> None:
    first, middle, last = files[0], files[1], files[-2]
    if how == "cut":
        os.truncate(last, 100)
    elif how == "cut inside":
        os.truncate(last, 30_000)
    elif how == "overwritten":
        with last.open("r+b") as file:
            file.seek(20_000)
            file.write(bytes(5000))
    elif how == "swapped":
        a, b = first.read_bytes(), last.read_bytes()
        first.write_bytes(b)
        last.write_bytes(a)
    else:
        middle.write_bytes(first.read_bytes())


@pytest.mark.parametrize("durability", ["none", "interval", "group"])
@pytest.mark.parametrize("how", ["cut", "cut inside", "overwritten", "swapped", "doubled"])
@pytest.mark.parametrize("repaired", [False, True])
def test_harm_without_a_power_cut_is_loss_whatever_was_flushed(
    tmp_path: Path, repaired: bool, how: str, durability: str
) -> None:
    """The machine stayed up: what control says was accepted was there, so nothing is `torn`."""
    path = tmp_path / "spool"
    _spoil(_killed(path, durability), how)
    report = mpqueue.repair(path, dry_run=True)
    if repaired:
        assert mpqueue.repair(path).lost_items == report.lost_items
    got, told, now = _take_all(path)
    lost = 30 - len(got)
    assert lost > 0
    assert (now.lost_items, now.torn_items) == (lost, 0)
    assert (report.lost_items, report.torn_items) == (lost, 0)
    assert told == (0 if repaired else lost)


@pytest.mark.parametrize("durability", ["none", "interval", "group"])
def test_a_dry_run_knows_the_acks_of_a_killed_consumer(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "spool"
    child = os.fork()
    if child == 0:
        try:
            q = mpqueue.Queue(path, segment_size=1 << 16, durability=durability, ack_linger=3600.0)
            c = q.consumer()
            q.put_many([b"x"] * 100)
            c.ack_many(c.reserve_many(100)[5:95])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    before = sorted((file.name, file.read_bytes()) for file in path.iterdir())
    dry = mpqueue.repair(path, dry_run=True)
    assert sorted((file.name, file.read_bytes()) for file in path.iterdir()) == before
    assert (dry.items, dry.lost_items, dry.torn_items) == (10, 0, 0)
    assert mpqueue.repair(path).items == 10
