"""Goal: what is not a queue, or not one that this version reads, is refused and left as it was.

Method: every kind of thing at the path; a refusal must leave the fingerprint of the directory equal
(names, modes, inodes, bytes), and its message must say what to do.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from mpqueue import layout
from mpqueue._native import xxh64
from rig import advises, drain, make, untouched

META_VERSION = 8  # offset in a meta slot
META_HASH = layout.PAGE - 8


def _open(path: Path) -> None:
    mpqueue.Queue(path, create=False).close()


def _create(path: Path) -> None:
    mpqueue.Queue(path).close()


def _destroy(path: Path) -> None:
    mpqueue.destroy(path)


def _repair(path: Path) -> None:
    mpqueue.repair(path)


def _inspect(path: Path) -> None:
    mpqueue.inspect(path).close()


ACTS = [_open, _create, _destroy, _repair, _inspect]
act = pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.strip("_"))
LOOKS = [_open, _destroy, _repair, _inspect]
look = pytest.mark.parametrize("act", LOOKS, ids=lambda act: act.__name__.strip("_"))

Act = Callable[[Path], None]


@look
def test_missing_path_is_not_a_queue_and_stays_missing(tmp_path: Path, act: Act) -> None:
    path = tmp_path / "nowhere"
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue) as refused:
        act(path)
    advises(refused.value, path)


def test_missing_parent_is_the_systems_error(tmp_path: Path) -> None:
    with untouched(tmp_path), pytest.raises(FileNotFoundError) as refused:
        _create(tmp_path / "no" / "parent")
    assert not isinstance(refused.value, mpqueue.QueueRemoved)
    advises(refused.value, tmp_path / "no" / "parent", "directory")


@look
def test_empty_directory_is_not_a_queue(tmp_path: Path, act: Act) -> None:
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue) as refused:
        act(tmp_path)
    advises(refused.value, tmp_path, "meta")


@look
def test_foreign_files_are_not_a_queue(tmp_path: Path, act: Act) -> None:
    (tmp_path / "report.csv").write_text("1,2\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "segment-1").write_text("not ours: too few digits")
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue):
        act(tmp_path)


def test_queue_among_foreign_files_leaves_them_alone(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("1,2\n")
    (tmp_path / "segment-1").write_text("not ours")
    (tmp_path / "data.7").symlink_to("report.csv")
    make(tmp_path, [b"x"] * 3)
    assert drain(tmp_path) == [b"x"] * 3
    mpqueue.destroy(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["data.7", "report.csv", "segment-1"]
    assert (tmp_path / "report.csv").read_text() == "1,2\n"


@act
@pytest.mark.parametrize("kind", ["file", "fifo", "device"])
def test_something_else_at_the_path_is_not_a_queue(tmp_path: Path, act: Act, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "file":
        path.write_bytes(b"hello")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue) as refused:
        act(path)
    advises(refused.value, path, "directory")


@act
@pytest.mark.parametrize(
    "meta", [b"", b"x", bytes(8192), os.urandom(8192), b"\xff" * 100_000], ids=len
)
def test_meta_of_garbage_is_not_a_queue(tmp_path: Path, act: Act, meta: bytes) -> None:
    (tmp_path / "meta").write_bytes(meta)
    (tmp_path / "control").write_bytes(b"keep me")
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue) as refused:
        act(tmp_path)
    advises(refused.value, tmp_path, "meta", "choose another|check the path")


@act
def test_meta_that_is_a_directory_is_refused(tmp_path: Path, act: Act) -> None:
    (tmp_path / "meta").mkdir()
    with (
        untouched(tmp_path),
        pytest.raises((mpqueue.FormatError, mpqueue.NotAQueue, OSError)) as refused,
    ):
        act(tmp_path)
    advises(refused.value, tmp_path, "meta")


@act
def test_files_of_a_queue_without_meta_are_not_made_one(tmp_path: Path, act: Act) -> None:
    make(tmp_path, [b"precious"])
    (tmp_path / "meta").unlink()
    with untouched(tmp_path), pytest.raises(mpqueue.NotAQueue) as refused:
        act(tmp_path)
    advises(refused.value, tmp_path, "meta")


def _patch_slots(path: Path, change: Callable[[bytearray], None]) -> None:
    meta = bytearray((path / "meta").read_bytes())
    for at in (0, layout.PAGE):
        slot = bytearray(meta[at : at + layout.PAGE])
        change(slot)
        slot[META_HASH:] = struct.pack("<Q", xxh64(bytes(slot[:META_HASH])))
        meta[at : at + layout.PAGE] = slot
    (path / "meta").write_bytes(meta)


@act
def test_newer_version_is_refused_untouched(tmp_path: Path, act: Act) -> None:
    make(tmp_path, [b"precious"] * 10)

    def newer(slot: bytearray) -> None:
        assert struct.unpack_from("<I", slot, META_VERSION) == (layout.FORMAT_VERSION,)
        struct.pack_into("<I", slot, META_VERSION, layout.FORMAT_VERSION + 1)

    def older(slot: bytearray) -> None:
        struct.pack_into("<I", slot, META_VERSION, layout.FORMAT_VERSION)

    _patch_slots(tmp_path, newer)
    with untouched(tmp_path), pytest.raises(mpqueue.FormatError) as refused:
        act(tmp_path)
    advises(refused.value, tmp_path, "format 2|version 2", "[Uu]se|newer")
    _patch_slots(tmp_path, older)
    assert drain(tmp_path) == [b"precious"] * 10


@act
def test_both_meta_slots_damaged_is_refused_untouched(tmp_path: Path, act: Act) -> None:
    make(tmp_path, [b"precious"])
    whole = (tmp_path / "meta").read_bytes()
    damaged = bytearray(whole)
    for at in (100, layout.PAGE + 100):
        damaged[at] ^= 1
    (tmp_path / "meta").write_bytes(damaged)
    with untouched(tmp_path), pytest.raises(mpqueue.FormatError) as refused:
        act(tmp_path)
    advises(refused.value, tmp_path, "damaged|neither", "backup|export|repair")
    (tmp_path / "meta").write_bytes(whole)
    assert drain(tmp_path) == [b"precious"]


@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_meta_slot_costs_nothing(tmp_path: Path, slot: int) -> None:
    make(tmp_path, [b"precious"])
    with open(tmp_path / "meta", "r+b") as file:
        file.seek(slot * layout.PAGE)
        file.write(bytes(layout.PAGE))
    assert drain(tmp_path) == [b"precious"]


@pytest.mark.parametrize("kind", ["segment", "control", "cursor"])
def test_newer_version_in_one_file_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Only meta's version decides; another file's foreign version is damage of that copy."""
    make(tmp_path, [b"precious"] * 3)
    (path,) = tmp_path.glob("segment-*1" if kind == "segment" else kind)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    path.write_bytes(data)
    assert drain(tmp_path) == [b"precious"] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size", 4096),
        ("segment_size", (1 << 16) + 1),
        ("segment_size", 1 << 40),
        ("max_segments", 1),
        ("max_segments", 1 << 30),
        ("ack_window", 63),
        ("ack_window", 1 << 23),
        ("max_members", 0),
        ("max_members", 1 << 20),
        ("max_item", 1 << 40),
        ("interval", -1.0),
        ("interval", float("nan")),
        ("durability", "perhaps"),
        ("capacity", -1),
        ("capacity", "many"),
    ],
)
def test_option_out_of_range_makes_nothing(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "spool"
    with untouched(tmp_path), pytest.raises(ValueError, match=name) as refused:
        mpqueue.Queue(path, **{name: value})
    assert type(refused.value) is ValueError
