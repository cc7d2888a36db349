"""Images of format v1 that were made once: the reader, `verify` and the core must agree on them.

Goal: a change of the format cannot slip in. Method: unpack a copy (which to the core is a restored
backup), look at it with the independent reader, then open and drain it with the core.
"""

from __future__ import annotations

import base64
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
import xxhash

import mpqueue
from mpqueue import codecs, layout
from mpqueue.reader import inspect, verify

FOLDER = Path(__file__).resolve().parent / "v1"
CASES = sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json"))


@pytest.fixture
def unpacked(case: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "queue"
    path.mkdir(mode=0o700)
    with tarfile.open(FOLDER / f"{case}.tar.xz") as tar:
        for member in tar.getmembers():
            source = tar.extractfile(member)
            assert source is not None
            target = path / member.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(source.read())
            target.chmod(0o600)
    return path, json.loads((FOLDER / f"{case}.json").read_text())


def described(seq: int, body: bytes, headers: dict[str, str]) -> tuple[Any, ...]:
    return seq, len(body), base64.b64encode(body[:40]).decode(), headers


def wanted(expected: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (item["seq"], item["length"], item["body_start"], item["headers"])
        for item in expected["items"]
    ]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_the_reader_finds_what_was_stored(unpacked: tuple[Path, dict[str, Any]], case: str) -> None:
    path, expected = unpacked
    before = contents(path)
    with inspect(path) as view:
        records = list(view.items())
        assert not view.trusted, "an unpacked copy has another inode"
        assert view.options["ack_window"] == expected["ack_window"]
        assert view.meta.sealed == expected["sealed"]
    assert [described(r.seq, r.body, r.headers) for r in records] == wanted(expected)
    assert [record.id for record in records] == [item["id"] for item in expected["items"]]
    report = verify(path)
    assert report.counts.ready == len(records)
    assert report.counts.damaged == expected["damaged"]
    assert report.damage == bool(expected["damaged"])
    assert contents(path) == before


@pytest.mark.parametrize("case", CASES)
def test_the_core_drains_what_the_reader_found(
    unpacked: tuple[Path, dict[str, Any]], case: str
) -> None:
    path, expected = unpacked
    losses: list[mpqueue.Corrupt] = []
    found = []
    with (
        mpqueue.Queue(path, create=False, raw=True) as queue,
        queue.consumer(on_loss=losses.append) as consumer,
    ):
        try:
            while (item := consumer.reserve(0)) is not None:
                found.append(described(item.seq, bytes(item.body), item.headers))
                item.ack()
        except mpqueue.Sealed:
            assert expected["sealed"]
        stats = queue.stats()
    assert found == wanted(expected)
    assert stats.depth == 0
    assert sum(loss.lost_items for loss in losses) == expected["damaged"]
    report = verify(path)
    assert not report.damage
    assert report.counts.depth == 0


@pytest.mark.parametrize("case", ["encrypted"])
def test_the_keys_of_old_read_what_was_encrypted(
    unpacked: tuple[Path, dict[str, Any]], case: str
) -> None:
    pytest.importorskip("cryptography")
    path, _ = unpacked
    keys = {1: bytes(range(32)), 2: bytes(range(32, 64))}
    before = contents(path)
    with pytest.raises(mpqueue.KeyMismatch, match="not the key 2"):
        mpqueue.Queue(path, codec=codecs.Aes("json", keys={2: bytes(32)}))
    assert contents(path) == before
    with (
        mpqueue.Queue(path, codec=codecs.Aes("json", keys=keys, current=2)) as queue,
        queue.consumer() as consumer,
    ):
        assert [item.value for item in consumer.drain()] == [{"key": 1}, {"key": 2}]


@pytest.mark.parametrize("case", ["plain"])
def test_a_newer_format_is_refused_and_not_touched(
    unpacked: tuple[Path, dict[str, Any]], case: str
) -> None:
    path, _ = unpacked
    data = bytearray((path / "meta").read_bytes())
    for start in (0, layout.PAGE):
        slot = data[start : start + layout.PAGE]
        struct.pack_into("<I", slot, layout.META_SLOT.offset("version"), 2)
        struct.pack_into("<Q", slot, layout.PAGE - 8, xxhash.xxh64_intdigest(slot[:-8], 0))
        data[start : start + layout.PAGE] = slot
    (path / "meta").write_bytes(data)
    before = contents(path)
    with pytest.raises(mpqueue.FormatError):
        inspect(path)
    with pytest.raises(mpqueue.FormatError):
        mpqueue.Queue(path, create=False)
    assert contents(path) == before


def test_there_are_images() -> None:
    assert {"plain", "rolled", "gaps", "sealed", "damaged", "encrypted"} <= set(CASES)


@pytest.mark.parametrize("case", ["keyed"])
def test_keys_are_remembered(unpacked: tuple[Path, dict[str, Any]]) -> None:
    path, expected = unpacked
    waiting = {item["seq"] for item in expected["items"]}
    with mpqueue.Queue(path) as queue:
        told = {n: queue.put(b"", key=f"key {n}") for n in range(29, 14, -1)}
        assert told == {n: n + 1 for n in told}
        assert queue.put(b"", key="last") == 31
        assert queue.put(b"", key="key 14") > 31, "the window has 16"
        assert len(queue) == len(waiting) + 1
    mpqueue.destroy(path)
