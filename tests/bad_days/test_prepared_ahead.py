"""Goal: a segment that was prepared ahead and holds nothing can be harmed without stopping a put.

Method: the file is cut, overwritten or replaced while nobody has the queue open, or under a living
process that has not entered it. Every put goes on, every item comes out, nothing counts as lost,
and `verify` says it as a warning. Broken once: `QueueRemoved` from every put until a repair.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from mpqueue.reader import verify

SEGMENT = 1 << 16
BODY = b"x" * 1000


def _cut(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length)


def _overwrite(start: int, length: int) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(start)
            file.write(b"\xa5" * length)

    return harm


def _lengthen(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(bytes(4096))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "somebody's").write_bytes(b"file")


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere/at all")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _another(path: Path) -> None:
    shutil.copy(path.with_name("segment-000000000001"), path)


HARMS: dict[str, Callable[[Path], None]] = {
    "empty": _cut(0),
    "short": _cut(8192),
    "half": _cut(SEGMENT // 2),
    "headers": _overwrite(0, 8192),
    "all": _overwrite(0, SEGMENT),
    "longer": _lengthen,
    "directory": _directory,
    "symlink": _dangling,
    "pipe": _pipe,
    "another": _another,
}
FLUSHED = [("short", "group"), ("directory", "group")]


def _fill_half(path: Path, durability: Any) -> tuple[mpqueue.Queue, Path, int]:
    """A queue that writes to its first segment, its second one, and how many items it holds."""
    q = mpqueue.Queue(path, segment_size=SEGMENT, max_segments=8, durability=durability)
    ahead, count = path / "segment-000000000002", 0
    while not ahead.exists():
        q.put(BODY)
        count += 1
    return q, ahead, count


def _drain(q: mpqueue.Queue, lost: int = 0) -> int:
    """How many items come out; none but `lost` may be lost so far."""
    count = 0
    with q.consumer() as consumer:
        while (item := consumer.reserve(0)) is not None:
            assert item.body == BODY
            item.ack()
            count += 1
        consumer.checkpoint()
        stats = q.stats()
        assert (stats.lost_items, stats.lost_segments, stats.depth) == (lost, int(lost > 0), 0)
    return count


def _warned(path: Path, name: str) -> None:
    """`verify` names the file in a warning, and in nothing worse."""
    findings = [finding for finding in verify(path).findings if finding.file == name]
    assert {finding.severity for finding in findings} == {"warning"}
    assert "nothing in it is owed" in findings[0].message
    command = [sys.executable, "-P", "-m", "mpqueue", "verify", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"warning: {name}: " in shown.stdout
    assert "whole, with warnings" in shown.stdout


@pytest.mark.parametrize(("harm", "durability"), [*((harm, "none") for harm in HARMS), *FLUSHED])
def test_the_next_open_makes_it_anew(tmp_path: Path, harm: str, durability: str) -> None:
    path = tmp_path / "spool"
    q, ahead, count = _fill_half(path, durability)
    q.close()
    HARMS[harm](ahead)
    _warned(path, ahead.name)
    with mpqueue.Queue(path) as q:
        for _ in range(100):
            q.put(BODY, timeout=5)
        assert not verify(path).damage
        assert _drain(q) == count + 100
        q.put(BODY, timeout=5)
    kept = sorted((path / "corrupt").iterdir()) if (path / "corrupt").exists() else []
    assert len(kept) == (0 if harm == "empty" else 1)
    if harm == "directory":
        assert (kept[0] / "somebody's").read_bytes() == b"file"
    mpqueue.destroy(path)


@pytest.mark.parametrize(("harm", "durability"), [*((harm, "none") for harm in HARMS), *FLUSHED])
def test_living_producers_pass_it(tmp_path: Path, harm: str, durability: str) -> None:
    path = tmp_path / "spool"
    q, ahead, count = _fill_half(path, durability)
    HARMS[harm](ahead)
    _warned(path, ahead.name)
    with mpqueue.Queue(path) as second:
        for _ in range(60):
            second.put(BODY, timeout=5)
            q.put(BODY, timeout=5)
        assert not verify(path).damage
        assert _drain(second) == count + 120
        for _ in range(10):  # what was passed is reclaimed, and never used again
            for _ in range(60):
                q.put(BODY, timeout=5)
            assert _drain(second) == 60
        assert not os.path.lexists(ahead)
    q.close()
    mpqueue.destroy(path)


@pytest.mark.parametrize("harm", ["empty", "short", "directory"])
def test_a_rebuild_after_it_was_passed_finds_every_item(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "spool"
    q, ahead, count = _fill_half(path, "group")
    HARMS[harm](ahead)
    for _ in range(100):
        q.put(BODY, timeout=5)
    q.close()
    (path / "control").unlink()
    assert not verify(path).damage
    with mpqueue.Queue(path) as q:
        assert _drain(q) == count + 100
    mpqueue.destroy(path)


def test_a_large_item_passes_what_is_broken_behind_what_is_too_small(tmp_path: Path) -> None:
    """One claim rolls over a prepared segment and meets a broken one behind it."""
    path = tmp_path / "spool"
    q, _, count = _fill_half(path, "none")
    behind = path / "segment-000000000003"
    behind.mkdir()
    q.put(b"L" * 100_000, timeout=5)
    q.put(BODY, timeout=5)
    bodies = []
    with q.consumer() as consumer:
        while (item := consumer.reserve(0)) is not None:
            bodies.append(item.body)
            item.ack()
    assert bodies == [BODY] * count + [b"L" * 100_000, BODY]
    assert q.stats().lost_items == 0
    q.close()
    mpqueue.destroy(path)


def test_the_active_one_replaced_by_a_directory_costs_what_was_in_it(tmp_path: Path) -> None:
    """Broken once: the open ended in IsADirectoryError, and so did verify."""
    path = tmp_path / "spool"
    q, ahead, count = _fill_half(path, "group")
    for _ in range(60):
        q.put(BODY, timeout=5)
    q.close()
    _directory(ahead)
    report = verify(path)
    assert report.damage
    assert report.counts.lost + report.counts.ready == count + 60
    losses: list[int] = []
    with mpqueue.Queue(path) as q:
        with q.consumer(on_loss=lambda loss: losses.append(loss.lost_items)) as consumer:
            got = 0
            while (item := consumer.reserve(0)) is not None:
                item.ack()
                got += 1
            consumer.checkpoint()
        assert got == report.counts.ready
        assert losses == [report.counts.lost]
        for _ in range(100):
            q.put(BODY, timeout=5)
        assert _drain(q, lost=report.counts.lost) == 100
        assert not os.path.lexists(ahead)
    mpqueue.destroy(path)
