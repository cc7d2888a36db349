"""Goal: each entry is in the file once, in order, whenever the writer dies and the power fails.

Method: a writer appends the entries of a list and acks them, as `mpqueue logd` does, on a disk that
dies at every step in turn, and again at a random step of the next run. What is left is checked as a
reader of the files would see it. Failures name the seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from disk import Death, Disk

from mpqueue.logging import marked
from mpqueue.logging.marked import MarkedFile

PROOF = os.environ.get("MPQ_PROOF") == "1"
SEEDS = 6 if PROOF else 1
pytestmark = pytest.mark.timeout(900 if PROOF else 120)
ITEMS = 14
MAX_BYTES = 40


def _entry(number: int) -> bytes:
    """Some have two lines, and one is longer than a file may be."""
    if number == 9:
        return b"%03d %s\n" % (number, b"x" * MAX_BYTES)
    return b"%03d a\n" % number + (b"%03d b\n" % number if number % 4 == 0 else b"")


def _position(number: int) -> tuple[int, int]:
    """The epoch changes on the way, and seqs begin again below the former ones."""
    return (7, 100 + number) if number < 6 else (9, number)


class Source:
    """The queue: items in order, redelivered until they are acked."""

    def __init__(self) -> None:
        self.acked: list[int] = []

    def ready(self) -> list[int]:
        return [number for number in range(ITEMS) if number not in self.acked]


def _write(disk: Disk, source: Source, rng: random.Random, **options: object) -> None:
    """One life of the writer."""
    with MarkedFile(disk.directory / "out", "queue", **options) as file:
        ready = source.ready()
        while ready:
            batch, ready = ready[: (size := rng.randint(1, 4))], ready[size:]
            file.write(
                (_position(number), _entry(number))
                for number in batch
                if not file.holds(_position(number))
            )
            disk.step("ack", lambda _, acks: source.acked.extend(acks), (0, bytes(batch)))


def _files(disk: Disk) -> list[bytes]:
    """Rotated files from the oldest on, then the one that is written."""
    numbers = sorted(
        int(name.rpartition(".")[2])
        for name in os.listdir(disk.directory)
        if name.rpartition(".")[2].isdigit()
    )
    names = [f"out.{number}" for number in reversed(numbers)] + ["out"]
    return [(disk.directory / name).read_bytes() for name in names]


def _lives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash: Callable[[Disk, Source, random.Random], None],
    check: Callable[[Disk, str], None],
    **options: object,
) -> int:
    """Dies at every step of the first life, at a random one of the second; checks after the third.

    Returns the number of deaths.
    """
    deaths = 0
    for seed in range(SEEDS):
        for mode in ("before", "half", "after"):
            at = 0
            while True:
                at += 1
                rng = random.Random(f"{seed} {mode} {at}")
                place = tmp_path / f"{seed}-{mode}-{at}"
                place.mkdir()
                disk, source = Disk(place), Source()
                monkeypatch.setattr(marked, "os", disk)
                died = 0
                for step in (at, rng.randint(1, 30)):
                    disk.arm(step, mode)
                    try:
                        _write(disk, source, rng, **options)
                    except Death:
                        died += 1
                        crash(disk, source, rng)
                disk.arm(0, mode)
                _write(disk, source, rng, **options)
                check(disk, f"seed {seed}, {mode} step {at}")
                deaths += died
                if died == 0 or at >= 400:
                    break
    print(f"marked: seeds 0..{SEEDS - 1}, {deaths} deaths, 0 violations")
    return deaths


def _kill(disk: Disk, source: Source, rng: random.Random) -> None:
    """Nothing more is lost than the process."""


def _all_once(disk: Disk, what: str) -> None:
    expected = b"".join(map(_entry, range(ITEMS)))
    files = _files(disk)
    assert b"".join(files) == expected, f"{what}: {files}"
    for content in files:
        assert len(content) <= MAX_BYTES or content == _entry(9), f"{what}: {files}"


@pytest.mark.parametrize("synced", [False, True])
def test_each_entry_once_after_any_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    deaths = _lives(tmp_path, monkeypatch, _kill, _all_once, synced=synced, max_bytes=MAX_BYTES)
    assert deaths > 100 * SEEDS


def test_each_entry_once_after_any_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = iter(range(1_000_000))
    boot = next(boots)
    monkeypatch.setattr(marked, "boot_id", lambda: f"boot {boot}")

    def cut(disk: Disk, source: Source, rng: random.Random) -> None:
        nonlocal boot
        boot = next(boots)
        disk.cut_power(rng)
        del source.acked[rng.randint(0, len(source.acked)) :]  # acks are durable a little later

    deaths = _lives(tmp_path, monkeypatch, cut, _all_once, synced=True, max_bytes=MAX_BYTES)
    assert deaths > 100 * SEEDS


def test_a_kill_removes_no_file_that_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = 2

    def check(disk: Disk, what: str) -> None:
        files = _files(disk)
        assert len(files) <= backups + 1, f"{what}: {files}"
        kept = b"".join(files)
        expected = b"".join(map(_entry, range(ITEMS)))
        assert expected.endswith(kept), f"{what}: {files}"
        assert kept.startswith(b"00") and len(files) == backups + 1, f"{what}: {files}"

    _lives(
        tmp_path,
        monkeypatch,
        _kill,
        check,
        synced=False,
        max_bytes=MAX_BYTES,
        backups=backups,
    )


# ---- what others do to the file ------------------------------------------------------------------


def _open(path: Path, **options: object) -> MarkedFile:
    return MarkedFile(path, "queue", **{"synced": False, **options})


def test_a_foreign_file_is_continued_behind_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"older\nhalf a line")
    with _open(tmp_path / "out") as file:
        file.write([((1, 1), b"new\n")])
    assert (tmp_path / "out").read_bytes() == b"older\nhalf a line\nnew\n"


@pytest.mark.parametrize("alive", [True, False], ids=["while open", "between runs"])
@pytest.mark.parametrize("harm", ["moved", "removed", "truncated", "replaced"])
def test_others_may_take_the_file_away(tmp_path: Path, harm: str, alive: bool) -> None:
    path = tmp_path / "out"
    file = _open(path)
    file.write([((1, 1), b"first line\n")])
    if not alive:
        file.close()
    if harm == "moved":
        path.rename(tmp_path / "elsewhere")
    elif harm == "removed":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(b"")
    else:
        (tmp_path / "other").write_bytes(b"foreign and longer than before\n")
        (tmp_path / "other").rename(path)
    if not alive:
        file = _open(path)
    assert file.holds((1, 1))
    file.write([((1, 2), b"second\n")])
    file.close()
    foreign = b"foreign and longer than before\n" if harm == "replaced" else b""
    assert path.read_bytes() == foreign + b"second\n"
    with _open(path) as again:
        assert again.holds((1, 2)) and not again.holds((1, 3))
    assert path.read_bytes() == foreign + b"second\n"


def test_a_reused_inode_is_not_cut(tmp_path: Path) -> None:
    """Filesystems give a new file the number of one that was just removed."""
    path = tmp_path / "out"
    with _open(path) as file:
        file.write([((1, 1), b"first line\n")])
    with path.open("r+b") as same:  # the same inode with other content
        same.write(b"something else, and longer than what the mark speaks of\n")
    said: list[str] = []
    _open(path, say=said.append).close()
    assert path.read_bytes().endswith(b"speaks of\n")
    assert len(said) == 1 and "changed" in said[0]


def test_after_a_power_cut_without_flushes_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acks of what lies behind the mark may have reached the disk before the mark did."""
    path = tmp_path / "out"
    with _open(path) as file:
        file.write([((1, 1), b"first\n")])
    with path.open("ab") as more:
        more.write(b"second\nthi")
    monkeypatch.setattr(marked, "boot_id", lambda: "another")
    said: list[str] = []
    _open(path, say=said.append).close()
    assert path.read_bytes() == b"first\nsecond\nthi\n"
    assert len(said) == 1


@pytest.mark.parametrize("torn", [None, 0, 1])
def test_marks_of_a_synced_life_do_not_outlast_an_unsynced_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int | None
) -> None:
    """Its lines and acks may reach the disk when its marks do not, or only torn."""
    disk = Disk(tmp_path)
    monkeypatch.setattr(marked, "os", disk)
    path = disk.directory / "out"
    with _open(path, synced=True) as file:
        file.write([((1, 1), b"first\n")])
    with _open(path) as file:
        file.write([((1, 2), b"second\n")])
    mark = disk.directory / "out.mark"
    left = bytearray(disk.flushed(mark))
    if torn is not None:
        left[torn * marked.SLOT + 20] ^= 1
    mark.write_bytes(left)
    monkeypatch.setattr(marked, "boot_id", lambda: "another")
    _open(path, synced=True).close()
    assert path.read_bytes() == b"first\nsecond\n"


def test_a_damaged_slot_leaves_the_other(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with _open(path) as file:
        file.write([((1, 1), b"first\n")])
        turn = file._turn
        file.write([((1, 2), b"second\n")])
    mark = tmp_path / "out.mark"
    newest = bytearray(mark.read_bytes())
    newest[marked.SLOT * ((turn + 1) % 2) + 30] ^= 1
    mark.write_bytes(newest)
    with _open(path) as file:
        assert file.holds((1, 1)) and not file.holds((1, 2))
    assert path.read_bytes() == b"first\n"


def test_marks_of_another_queue_do_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with _open(path) as file:
        file.write([((1, 1), b"first\n")])
    said: list[str] = []
    with MarkedFile(path, "other", synced=False, say=said.append) as file:
        assert not file.holds((1, 1))
    assert len(said) == 1 and "another queue" in said[0]


def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    with _open(path) as file:
        file.write([((1, 1), b"first\n")])

        real = os.write

        def full(fd: int, data: bytes) -> int:
            if len(data) <= 6:
                raise OSError(28, "No space left on device")
            return real(fd, data[:3])

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, "write", full)
            file.write([((1, 2), b"second line\n")])
        file.write([((1, 2), b"second line\n")])
    assert path.read_bytes() == b"first\nsecond line\n"
