"""Goal: what is put in place of a queue's files leads nobody to a file elsewhere, nor to a wait.

Method: each name as a link to a file of value, as a link to the very file that was there, and as a
pipe that nobody feeds; directories as links to directories of value. Calls fail by name, what is
outside stays as it was, and when the file is back nothing was lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import mpqueue
from rig import advises, drain, fingerprint, untouched

NAMES = ["meta", "control", "cursor", "keys", "segment-000000000001"]
FAILURES = ["a few bytes of value", "what was there", "nothing", "a pipe"]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    with mpqueue.Queue(path, segment_size=1 << 16, key_window=10, max_attempts=3) as q:
        for number in range(3):
            q.put(b"%d" % number, key=f"key {number}")
        with q.consumer() as consumer:
            consumer.reserve().ack(durable=True)
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "precious").write_bytes(b"of value")
    (path / "precious").chmod(0o640)
    for number in range(80):
        (path / f"{number:020}-file").write_bytes(b"of value")
    return path


def _use(path: Path) -> None:
    with (
        mpqueue.Queue(path, create=False) as q,
        q.consumer(on_loss=lambda loss: pytest.fail(str(loss))) as consumer,
    ):
        item = consumer.reserve(timeout=0)
        assert item is not None
        item.nack()
        q.put(b"more", key="more")


@pytest.mark.parametrize("boot", ["this", "another"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", NAMES)
def test_no_link_is_followed_and_no_pipe_waited_for(
    spool: Path,
    outside: Path,
    name: str,
    failure: str,
    boot: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if boot == "another":
        monkeypatch.setenv("MPQ_BOOT_ID", "another-boot")
    kept = outside / "kept"
    (spool / name).rename(kept)
    target = {"what was there": kept, "nothing": outside / "new"}.get(failure, outside / "precious")
    if failure == "a pipe":
        os.mkfifo(spool / name)
    else:
        (spool / name).symlink_to(target)
    before = fingerprint(outside)
    if (name, boot) == ("keys", "this"):
        _use(spool)  # it is not needed yet
    else:
        for _ in range(2):
            with pytest.raises(OSError, match="link") as refused:
                _use(spool)
            advises(refused.value, spool, "a link, or a special file")
    assert fingerprint(outside) == before
    (spool / name).unlink()
    kept.rename(spool / name)
    assert drain(spool)[:2] == [b"1", b"2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody")
def test_root_gives_away_what_it_made_and_nothing_else(spool: Path, outside: Path) -> None:
    for entry in (spool, *spool.iterdir()):
        os.chown(entry, 65534, 65534)
    (spool / "cursor").unlink()
    (spool / "cursor").symlink_to(outside / "precious")
    with untouched(outside), pytest.raises(OSError, match="link"):
        _use(spool)
    assert (outside / "precious").stat().st_uid == 0
    (spool / "cursor").unlink()
    _use(spool)
    assert (spool / "cursor").stat().st_uid == 65534


def test_destroy_leaves_what_is_not_the_queue_s(tmp_path: Path, spool: Path) -> None:
    with mpqueue.Queue(spool) as q, q.consumer() as consumer:
        consumer.reserve().dead("out of the way")
    (spool / "corrupt").mkdir()
    ours = "00000000000000000001-segment-000000000001-offset-0000016384"
    for name in (ours, ours.partition("-offset")[0], "notes", f"notes-{ours}"):
        (spool / "corrupt" / name).write_text("of value")
    (spool / "dead" / "notes").write_text("of value")
    (spool / "notes").write_text("of value")
    mpqueue.destroy(spool)
    left = {str(entry.relative_to(spool)) for entry in spool.rglob("*") if entry.is_file()}
    assert left == {"notes", "dead/notes", "corrupt/notes", f"corrupt/notes-{ours}"}


@pytest.mark.parametrize("name", ["corrupt", "dead"])
def test_destroy_follows_no_link(tmp_path: Path, spool: Path, outside: Path, name: str) -> None:
    with mpqueue.Queue(outside / "queue") as q:
        q.put(b"of value")
    ours = "00000000000000000001-segment-000000000001-offset-0000016384"
    (outside / ours).write_text("of value")
    target = outside / "queue" if name == "dead" else outside
    (spool / name).symlink_to(target)
    with untouched(outside):
        mpqueue.destroy(spool)
    assert drain(outside / "queue") == [b"of value"]
    assert os.listdir(spool) == [name]


def test_dead_letters_go_through_no_link(spool: Path, outside: Path) -> None:
    with mpqueue.Queue(outside / "queue") as q:
        q.put(b"of value")
    (spool / "dead").symlink_to(outside / "queue")
    with mpqueue.Queue(spool) as q, q.consumer() as consumer, untouched(outside):
        item = consumer.reserve()
        with pytest.raises(mpqueue.NotAQueue, match="a link to one"):
            item.dead("no place for it")
        item.nack()
    (spool / "dead").unlink()
    assert drain(spool) == [b"1", b"2"]


def test_damage_is_saved_through_no_link(spool: Path, outside: Path) -> None:
    segment = spool / "segment-000000000001"
    data = bytearray(segment.read_bytes())
    at = data.rindex(b"key 2")
    data[at] ^= 1
    segment.write_bytes(data)
    (spool / "corrupt").symlink_to(outside)
    before = fingerprint(outside)
    losses: list[mpqueue.Corrupt] = []
    with mpqueue.Queue(spool) as q:
        with q.consumer(on_loss=losses.append) as consumer:
            assert [item.body for item in consumer.drain()] == [b"1"]
        assert q.stats().corrupt_saved == 0
    assert len(losses) == 1
    assert fingerprint(outside) == before
    shutil.rmtree(spool)
