"""Goal: dead letters can be looked at, put back, dropped and swept, and belong to their queue.

Method: letters made by item.dead(); what concerns the whole directory (destroy, verify, repair,
copies) is done to a queue that has some.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.reader import verify


def bury(q: mpqueue.Queue, *bodies: bytes, reason: str = "test") -> list[str]:
    """Makes dead letters of these; returns their ids."""
    ids = []
    q.put_many(list(bodies))
    with q.consumer() as c:
        for item in c.drain():
            ids.append(item.id)
            item.dead(reason)
    return ids


def bodies(q: mpqueue.Queue) -> list[bytes]:
    return [letter.body for letter in q.dead]


def drain(q: mpqueue.Queue) -> list[tuple[bytes, str, int]]:
    with q.consumer() as c:
        return [(item.body, item.id, item.attempts) for item in c.drain(ack="on_read")]


def test_without_dead_letters_there_is_no_directory(open_queue: OpenQueue) -> None:
    q = open_queue(max_attempts=5)
    assert (len(q.dead), bool(q.dead), q.dead.peek(), q.dead.queue) == (0, True, None, None)
    assert (q.dead.redrive(), q.dead.purge(), q.dead.sweep()) == (0, 0, 0)
    assert not os.path.exists(q.dead.path)


def test_all_go_back_as_what_they_were(open_queue: OpenQueue) -> None:
    q = open_queue()
    ids = bury(q, b"a", b"b", b"c")
    assert [letter.id for letter in q.dead] == ids
    assert q.dead.redrive() == 3
    assert (len(q.dead), len(q)) == (0, 3)
    assert drain(q) == [(body, name, 1) for body, name in zip((b"a", b"b", b"c"), ids, strict=True)]


def test_an_item_keeps_its_id_through_any_number_of_deaths(open_queue: OpenQueue) -> None:
    q = open_queue(max_attempts=1)
    (name,) = bury(q, b"x")
    for _ in range(3):
        assert q.dead.redrive() == 1
        with q.consumer() as c:
            item = c.reserve(0)
            assert (item.id, item.attempts) == (name, 1)
            item.nack(reason="again")
            assert c.reserve(0) is None
        (letter,) = q.dead
        assert (letter.id, letter.attempts, letter.reason) == (name, 1, "attempts")


def test_some_go_back_by_seq_id_predicate_and_number(open_queue: OpenQueue) -> None:
    q = open_queue()
    ids = bury(q, *(b"%d" % number for number in range(8)))
    assert q.dead.redrive({2}) == 1
    assert q.dead.redrive([ids[4]]) == 1
    assert q.dead.redrive(lambda letter: letter.body in (b"0", b"6")) == 2
    assert q.dead.redrive(lambda letter: letter.reason != "test") == 0
    assert q.dead.redrive(limit=1) == 1
    assert bodies(q) == [b"3", b"5", b"7"]
    assert [body for body, _, _ in drain(q)] == [b"1", b"4", b"0", b"6", b"2"]
    assert {letter.seq for letter in q.dead} == {4, 6, 8}
    with mpqueue.inspect(q.dead.path) as view:
        assert {record.attempts for record in view.items()} == {0}, "a look is no attempt"


def test_letters_are_dropped(open_queue: OpenQueue) -> None:
    q = open_queue()
    bury(q, b"a", b"b", b"c", b"d")
    assert q.dead.drop([1, 3]) == 2
    assert q.dead.drop(limit=1) == 1
    assert bodies(q) == [b"d"]
    assert (q.dead.purge(), len(q.dead), len(q)) == (1, 0, 0)


def test_a_full_or_sealed_queue_takes_none_back(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=2)
    bury(q, b"a", b"b")
    bury(q, b"c")
    with pytest.raises(mpqueue.Full):
        q.dead.redrive()
    assert (len(q), bodies(q)) == (2, [b"c"])
    q.seal()
    with pytest.raises(mpqueue.Sealed):
        q.dead.redrive()
    assert bodies(q) == [b"c"]


def test_a_second_letter_of_one_item_is_dropped(open_queue: OpenQueue, tmp_path: Path) -> None:
    """As it is after a crash between the move's two steps: moved, and not acked."""
    q = open_queue()
    q.put(b"x")
    q.flush()
    before = tmp_path / "before"
    shutil.copytree(q.path, before)  # no ack is in it
    bury(q)
    with q.consumer() as c:
        for item in c.drain():
            item.dead()
    q.close()
    shutil.copytree(Path(q.path, "dead"), before / "dead")
    with mpqueue.Queue(before) as copy:
        with copy.consumer() as c, c.reserve(0) as item:
            item.dead()
        assert [letter.body for letter in copy.dead] == [b"x", b"x"]
        one, two = (letter.id.rpartition(":")[2] for letter in copy.dead)
        assert one == two
        same = {letter.id for letter in copy.dead}
        assert copy.dead.redrive() == len(same)
        assert len(copy.dead) == 0
    mpqueue.destroy(before)


@pytest.mark.parametrize("bad", [-1, -0.5, float("nan")])
def test_bounds_that_are_none_drop_nothing(open_queue: OpenQueue, bad: float) -> None:
    """older=-1 and keep=-1 once dropped all."""
    q = open_queue()
    bury(q, b"one", b"two")
    for name, act in (
        ("older", q.dead.sweep),
        ("keep", q.dead.sweep),
        ("limit", q.dead.drop),
        ("limit", q.dead.redrive),
        ("timeout", q.dead.redrive),
    ):
        with pytest.raises(ValueError, match=f"{name} is {bad}"):
            act(**{name: bad})
    with pytest.raises(TypeError, match=r"keep is 0\.5"):
        q.dead.sweep(keep=0.5)
    assert (bodies(q), len(q)) == ([b"one", b"two"], 0)


def test_a_sweep_drops_by_age_and_by_number(
    open_queue: OpenQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = open_queue()
    bury(q, *(b"%d" % number for number in range(6)))
    assert q.dead.sweep() == 0, "there is no dead_retain"
    assert q.dead.sweep(older=3600) == 0
    assert q.dead.sweep(keep=4) == 2
    assert bodies(q) == [b"2", b"3", b"4", b"5"]
    q.set_options(dead_retain=3600)
    assert q.dead.sweep() == 0
    q.checkpoint()
    assert len(q.dead) == 4
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    with q.dead.queue.consumer(), caplog.at_level(logging.WARNING, "mpqueue"):
        q.checkpoint()  # cannot sweep now, and does not fail
    assert "could not be dropped" in caplog.text
    assert len(q.dead) == 4
    q.checkpoint()
    assert (len(q.dead), q.stats().dead_items) == (0, 6)


def test_another_process_puts_back_while_this_one_consumes(open_queue: OpenQueue) -> None:
    q = open_queue()
    ids = bury(q, b"a")
    script = "import mpqueue, sys; print(mpqueue.Queue(sys.argv[1]).dead.redrive())"
    with q.consumer() as c:
        q.put(b"other")
        c.reserve(0).dead()  # this consumer has the dead letters open from now on
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, q.path], capture_output=True, text=True, check=True
        )
        assert done.stdout == "2\n"
        with c.reserve(0) as item:
            assert item.id == ids[0]
        c.reserve(0).dead()
    assert bodies(q) == [b"other"]


def test_destroy_takes_the_dead_letters_along(spool: Path) -> None:
    q = mpqueue.Queue(spool)
    bury(q, b"a")
    letters = q.dead.queue
    uuids = (q.uuid, letters.uuid)
    with pytest.raises(mpqueue.QueueInUse):
        mpqueue.destroy(spool)
    q.close()
    assert letters.closed
    with mpqueue.Queue(spool / "dead") as alone:
        with pytest.raises(mpqueue.QueueInUse, match="dead"):
            mpqueue.destroy(spool)
        assert len(alone) == 1
    with mpqueue.Queue(spool, create=False) as q:
        assert len(q.dead) == 1, "nothing was removed"
    mpqueue.destroy(spool)
    assert not spool.exists()
    assert [uuid for uuid in uuids if os.path.exists(f"/dev/shm/sem.mpq-{uuid}")] == []


@pytest.mark.parametrize("left", ["nothing", "making-1-2", "meta"])
def test_destroy_takes_what_was_half_made(spool: Path, left: str) -> None:
    mpqueue.Queue(spool).close()
    (spool / "dead").mkdir()
    if left == "meta":
        mpqueue.Queue(spool / "dead").close()
        (spool / "dead/meta").rename(spool / "dead/destroyed")
    elif left != "nothing":
        (spool / "dead" / left).write_bytes(b"x")
    mpqueue.destroy(spool)
    assert not spool.exists()


def test_foreign_files_in_the_directory_stay(spool: Path) -> None:
    mpqueue.Queue(spool).close()
    (spool / "dead").mkdir()
    (spool / "dead/letter.txt").write_text("mine")
    mpqueue.destroy(spool)
    assert (spool / "dead/letter.txt").read_text() == "mine"


def test_verify_and_repair_cover_the_dead_letters(spool: Path) -> None:
    with mpqueue.Queue(spool, segment_size=65536) as q:
        bury(q, b"whole", b"harmed", b"whole too")
    assert not verify(spool).findings
    segment = next((spool / "dead").glob("segment-*"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"harmed")] ^= 1
    segment.write_bytes(data)
    report = verify(spool)
    assert report.damage
    assert {finding.file for finding in report.findings} == {f"dead/{segment.name}"}
    repaired = mpqueue.repair(spool)
    assert (repaired.lost_items, repaired.items) == (1, 2)
    assert not verify(spool).damage
    with mpqueue.Queue(spool) as q:
        assert bodies(q) == [b"whole", b"whole too"]
        with mpqueue.Queue(spool / "dead"), pytest.raises(mpqueue.QueueInUse):
            mpqueue.repair(spool)


def test_a_copy_of_the_directory_has_its_own_letters(spool: Path, tmp_path: Path) -> None:
    with mpqueue.Queue(spool) as q:
        ids = bury(q, b"a", b"b")
        q.put(b"live")
    copy = tmp_path / "copy"
    shutil.copytree(spool, copy)
    with mpqueue.Queue(copy) as q:
        assert [letter.id for letter in q.dead] == ids
        assert q.dead.redrive() == 2
        assert sorted(body for body, _, _ in drain(q)) == [b"a", b"b", b"live"]
    with mpqueue.Queue(spool) as q:
        assert len(q.dead) == 2
    mpqueue.destroy(copy)


def test_codecs_and_forks_work_on_letters_too(spool: Path) -> None:
    with mpqueue.Queue(spool, codec="json") as q:
        q.put({"user": 5})
        with q.consumer() as c:
            c.reserve().dead()
        child = os.fork()
        if child == 0:
            os._exit(len(q.dead) + 10 * q.dead.redrive())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11
        with q.consumer() as c, c.reserve(0) as item:
            assert item.value == {"user": 5}


def test_a_closed_queue_has_closed_letters(open_queue: OpenQueue) -> None:
    q = open_queue()
    bury(q, b"a")
    opened = q.dead.queue
    q.close()
    assert opened is not None and opened.closed
    for use in (q.dead.redrive, q.dead.purge):
        with pytest.raises(mpqueue.Closed):
            use()
    assert bodies(q) == [b"a"], "files can be looked at"
