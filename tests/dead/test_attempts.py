"""Goal: what was handed out max_attempts times goes to the dead letters, once, whole, no sooner.

Method: handlers that fail in each way, down to real SIGKILLs of their own process; dead letters
that take nothing; the letters are read back by both readers.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.reader import verify


def fail(consumer: mpqueue.Consumer, text: str) -> None:
    """One hand-out that ends with an exception."""
    with pytest.raises(ValueError, match=text), consumer.reserve(0):
        raise ValueError(text)


def test_an_item_is_handed_out_so_often_and_not_once_more(open_queue: OpenQueue) -> None:
    q = open_queue(max_attempts=3)
    q.put(b"poison", headers={"kind": "mail"})
    q.put(b"good")
    with q.consumer() as c:
        for number in range(3):
            fail(c, f"failure {number}")
        with c.reserve(0) as item:
            assert (item.body, item.attempts) == (b"good", 1)
            name = item.id
        assert c.reserve(0) is None
    stats = q.stats()
    assert (stats.dead_items, stats.items_acked, stats.depth) == (1, 2, 0)
    assert stats.items_delivered == 4
    letter = q.dead.peek()
    assert (letter.body, letter.headers) == (b"poison", {"kind": "mail"})
    assert (letter.reason, letter.attempts) == ("attempts", 3)
    assert (letter.first_failure, letter.last_failure) == (
        "ValueError: failure 0",
        "ValueError: failure 2",
    )
    assert 0 < letter.first_failed_at <= letter.last_failed_at <= letter.dead_at
    assert letter.id == name.rpartition(":")[0] + ":1"
    assert len(q.dead) == 1


def test_a_handler_that_kills_its_process_is_dead_after_exactly_n(spool: Path) -> None:
    attempts = 4
    with mpqueue.Queue(spool, max_attempts=attempts) as q:
        q.put(b"kills")
        q.put(b"good")
    script = """
        import mpqueue, os, signal, sys
        with mpqueue.Queue(sys.argv[1]) as q, q.consumer() as c:
            for item in c.drain():
                os.write(1, b"%s %d\\n" % (item.body, item.attempts))
                if item.body == b"kills":
                    os.kill(os.getpid(), signal.SIGKILL)
    """
    script = "\n".join(line[8:] for line in script.splitlines())
    seen = []
    for _ in range(attempts + 1):
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, spool], capture_output=True, text=True
        )
        seen.append((done.stdout.split("\n")[0], done.returncode))
    killed = [(f"kills {number + 1}", -signal.SIGKILL) for number in range(attempts)]
    assert seen == [*killed, ("good 1", 0)]
    with mpqueue.Queue(spool) as q:
        (letter,) = q.dead.letters()
        assert (letter.attempts, letter.reason, letter.first_failure) == (
            attempts,
            "attempts",
            None,
        )
        assert len(q) == 0
    mpqueue.destroy(spool)
    assert not spool.exists()


def test_a_nack_and_a_lease_that_ran_out_are_failures_too(open_queue: OpenQueue) -> None:
    q = open_queue(max_attempts=2, lease_timeout=3600)
    q.put(b"slow")
    with q.consumer() as c:
        c.reserve().nack(reason="no \0 disk")
        item = c.reserve()
        item.extend(0)
        assert c.reserve(0.2) is None
        assert item.settled
    letter = q.dead.peek()
    assert (letter.first_failure, letter.last_failure) == ("no   disk", "its lease ran out")
    with pytest.raises(TypeError, match="reason is a str"), q.consumer() as c:
        q.put(b"more")
        item = c.reserve()
        item.nack(reason=5)


def test_an_item_is_given_up_by_hand(open_queue: OpenQueue) -> None:
    q = open_queue()  # also without max_attempts
    q.put_many([b"a", b"b", b"c"])
    with q.consumer() as c:
        a, b = c.reserve(), c.reserve()
        b.dead(reason="no such user \u2603")
        assert (b.settled, q.stats().reserved_items, len(q)) == (True, 1, 2)
        b.ack()  # a repeat
        with c.reserve() as item:
            item.dead()
        a.ack()
        for late in (a.dead, lambda: a.dead("again")):
            with pytest.raises(mpqueue.StaleItem, match="acked"):
                late()
        with pytest.raises(TypeError, match="reason is a str"):
            a.dead(b"bytes")
    assert [(letter.body, letter.reason) for letter in q.dead] == [
        (b"b", "no such user \u2603"),
        (b"c", "rejected"),
    ]
    assert len(q) == 0


def test_long_texts_are_cut_at_a_character(open_queue: OpenQueue) -> None:
    q = open_queue(max_attempts=1)
    q.put(b"x")
    with q.consumer() as c:
        fail(c, "\u20ac" * 5000)
        assert c.reserve(0) is None
    letter = q.dead.peek()
    assert letter.first_failure == letter.last_failure
    assert len(letter.first_failure.encode()) in range(990, 1001)
    assert letter.first_failure.strip("\u20ac") == "ValueError: "


def test_what_the_headers_leave_no_room_for_is_left_out(open_queue: OpenQueue) -> None:
    q = open_queue()
    headers = {"key": "v" * 65500}
    q.put(b"body", headers=headers)
    with q.consumer() as c:
        c.reserve().dead("why")
    letter = q.dead.peek()
    assert (letter.body, letter.headers) == (b"body", headers)


def test_dead_letters_that_take_nothing_keep_the_item_and_stop_nobody(
    open_queue: OpenQueue, caplog: pytest.LogCaptureFixture
) -> None:
    q = open_queue(max_attempts=1)
    q.put_many([b"first", b"second", b"third", b"good"])
    with q.consumer() as c:
        c.reserve(0).nack()
        second = c.reserve(0)  # first is moved
        assert second.body == b"second"
        q.dead.queue.set_options(capacity=1)
        second.nack()
        with caplog.at_level(logging.WARNING, "mpqueue"):
            third = c.reserve(0)
            assert third.body == b"third", "second stays, unseen"
            with pytest.raises(mpqueue.Full, match="dead"):
                third.dead()
            third.nack()
            with c.reserve(0) as item:
                assert item.body == b"good"
            assert c.reserve(0) is None
        assert len([record for record in caplog.records if "dead" in record.message]) == 1
        assert (len(q), len(q.dead), q.stats().reserved_items) == (2, 1, 0)
        q.seal()
        q.dead.queue.set_options(capacity=None)
        with pytest.raises(mpqueue.Sealed):
            c.reserve()  # tried again until it succeeded
    assert sorted(letter.body for letter in q.dead) == [b"first", b"second", b"third"]
    assert not verify(q.path).damage


def test_an_item_in_hand_stays_in_hand_when_it_cannot_be_moved(open_queue: OpenQueue) -> None:
    q = open_queue(lease_timeout=3600)
    q.put(b"a")
    Path(q.path, "dead").write_bytes(b"in the way")
    with q.consumer() as c:
        item = c.reserve()
        with pytest.raises((mpqueue.NotAQueue, OSError)):
            item.dead()
        assert (q.stats().reserved_items, item.settled) == (1, False)
        item.extend(1)
        Path(q.path, "dead").unlink()
        item.dead()
    assert len(q.dead) == 1


def test_the_option_is_set_and_lifted(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"x")
    with q.consumer() as c:
        for _ in range(5):
            c.reserve(0).nack()
        q.set_options(max_attempts=5)
        assert c.peek() is None
        assert q.dead.peek().attempts == 5
        q.set_options(max_attempts=None)
    for wrong in (0, -1, 65536, 1.5, True):
        with pytest.raises(ValueError, match="max_attempts"):
            q.set_options(max_attempts=wrong)


def test_attempts_outlive_the_machine(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = open_queue(max_attempts=3)
    q.put(b"x")
    with q.consumer() as c:
        c.reserve(0).nack()
        c.reserve(0).nack()
        q.put(b"dead by hand")
        c.reserve(0).nack()
        by_hand = c.reserve(0)
        assert by_hand.body == b"dead by hand"
        c.rewind()
    assert q.stats().dead_items == 1
    q.close()
    monkeypatch.setenv("MPQ_BOOT_ID", "another-boot")
    q = open_queue()
    assert (q.stats().dead_items, q.stats().recoveries) == (1, 1)
    with mpqueue.inspect(q.path) as view:
        assert view.counters["dead_items"] == 1
    assert len(q.dead) == 1


def test_encrypted_letters_are_read_with_the_keys_of_their_queue(spool: Path) -> None:
    pytest.importorskip("cryptography")
    codec = mpqueue.codecs.Aes("json", keys={1: bytes(range(32))})
    with mpqueue.Queue(spool, codec=codec) as q:
        q.put({"secret": 5})
        with q.consumer() as c:
            c.reserve().dead()
        (letter,) = q.dead
        assert b"secret" not in letter.body
        assert q.dead.value(letter) == {"secret": 5}
        with pytest.raises(mpqueue.CodecError):
            q.dead.value(type(letter)(**letter._asdict() | {"body": letter.body[:-1]}))
        assert q.dead.redrive() == 1
        with q.consumer() as c, c.reserve(0) as item:
            assert item.value == {"secret": 5}
    mpqueue.destroy(spool)


def test_a_moved_queue_leaves_no_letter_where_another_one_is(spool: Path) -> None:
    moved = spool.with_name("moved")
    with mpqueue.Queue(spool) as q:
        q.put(b"x")
        with q.consumer() as c:
            item = c.reserve()
            spool.rename(moved)
            mpqueue.Queue(spool).close()
            with pytest.raises(mpqueue.QueueRemoved, match="not at this path"):
                item.dead()
            assert not (spool / "dead").exists()
            shutil.rmtree(spool)
            moved.rename(spool)
            item.dead()
        assert len(q.dead) == 1


def test_modes_codec_and_durability_are_those_of_the_queue(spool: Path) -> None:
    with mpqueue.Queue(spool, codec="json", durability="sync", mode=0o660) as q:
        q.put({"user": 5})
        with q.consumer() as c:
            c.reserve().dead()
        dead = q.dead.queue
        assert (dead.options.codec, dead.options.durability) == ("json", "sync")
        assert (dead.options.capacity, dead.options.max_bytes) == (None, None)
        assert (spool / "dead/meta").stat().st_mode & 0o777 == 0o660
        assert dead.uuid != q.uuid
        (letter,) = q.dead
        assert (letter.body, q.dead.value(letter)) == (b'{"user":5}', {"user": 5})
        q.dead.redrive()
        with q.consumer() as c:
            item = c.reserve(0)
            assert item.value == {"user": 5}
            item.ack()
    assert not os.path.exists(f"/dev/shm/sem.mpq-{dead.uuid}")
    mpqueue.destroy(spool)
