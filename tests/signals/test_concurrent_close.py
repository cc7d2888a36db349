"""Threads of one process that open, flush and close at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue


def _together(*acts: Callable[[], object]) -> list[BaseException]:
    """Runs each in a thread of its own, begun at the same moment; what they raised."""
    gate, errors = threading.Barrier(len(acts)), []

    def run(act: Callable[[], object]) -> None:
        gate.wait()
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_flush_beside_consumers_that_come_and_go(tmp_path: Path) -> None:
    q, over = mpqueue.Queue(tmp_path / "spool", segment_size=1 << 16), threading.Event()

    def flush() -> None:
        while not over.is_set():
            q.flush()

    def consume() -> None:
        try:
            for number in range(150):
                q.put(b"x" * 100)
                with q.consumer() as c:
                    assert c.take().seq == number + 1
                del c
        finally:
            over.set()

    assert _together(flush, flush, consume) == []
    assert len(q) == 0
    q.close()


@pytest.mark.crash
@pytest.mark.parametrize("how", ["consumer and queue", "queue twice", "consumer twice"])
def test_an_ack_is_durable_when_any_of_two_closes_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for number in range(25):
        monkeypatch.setenv("MPQ_BOOT_ID", f"before-{number}")
        path = tmp_path / f"spool{number}"
        q = mpqueue.Queue(path, segment_size=1 << 16, max_segments=4, ack_linger=1000.0)
        q.put(b"x")
        c = q.consumer()
        c.reserve().ack()
        closes = {
            "consumer and queue": (c.close, q.close),
            "queue twice": (q.close, q.close),
            "consumer twice": (c.close, c.close),
        }[how]
        floors = []

        def close(act: Callable[[], object], path: Path = path, floors: list[int] = floors) -> None:
            act()
            with mpqueue.inspect(path) as view:  # what the file says, whatever control knows
                assert view.cursor is not None
                floors.append(view.cursor.floor)

        assert _together(*(lambda act=act: close(act) for act in closes)) == []
        assert floors == [2, 2], number
        q.close()
        monkeypatch.setenv("MPQ_BOOT_ID", f"after-{number}")
        with mpqueue.Queue(path) as again:
            assert len(again) == 0


def test_a_put_beside_a_close_returns_or_is_absent(tmp_path: Path) -> None:
    absent = present = 0
    for number in range(20):
        q = mpqueue.Queue(tmp_path / str(number), segment_size=1 << 16)
        seqs: list[int] = []

        def put(q: mpqueue.Queue = q, seqs: list[int] = seqs) -> None:
            while True:
                seqs.append(q.put(b"x"))

        def close(q: mpqueue.Queue = q, seqs: list[int] = seqs) -> None:
            while not seqs:
                pass
            q.close()

        errors = _together(put, put, close)
        assert [type(error) for error in errors] == [mpqueue.Closed] * 2
        absent += len(errors)
        with mpqueue.Queue(tmp_path / str(number)) as again, again.consumer() as c:
            assert [item.seq for item in c.drain()] == sorted(seqs)
        present += len(seqs)
    assert absent == 40 and present >= 20


def test_a_consumer_waits_for_another_one_of_its_own_handle(tmp_path: Path) -> None:
    with mpqueue.Queue(tmp_path / "spool") as q:
        held = q.consumer()
        with pytest.raises(mpqueue.ConsumerBusy) as refused:
            q.consumer()
        assert "this handle" in str(refused.value)
        assert refused.value.pid == os.getpid()
        got: list[mpqueue.Consumer[bytes]] = []
        waiting = threading.Thread(target=lambda: got.append(q.consumer(wait=60)))
        waiting.start()
        held.close()
        waiting.join()
        assert not got[0].closed


DRAIN = """
import os, sys, mpqueue
q = mpqueue.Queue(sys.argv[1])
c = q.consumer()
while items := c.reserve_many(4000, timeout=0):
    c.ack_many(items)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
c.close()
"""


@pytest.mark.parametrize("durability", ["none", "group", "sync"])
@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_ring_that_was_drained_takes_puts_again(
    tmp_path: Path, durability: str, end: str
) -> None:
    """Whoever drained it ended before its segments were freed: at the latest the next consumer,
    which has nothing to ack, frees them."""
    path = tmp_path / "spool"
    with mpqueue.Queue(
        path, segment_size=1 << 16, max_segments=8, durability=durability, ack_linger=1000.0
    ) as q:
        with pytest.raises(mpqueue.Full):
            while True:
                q.put_many([b"z" * 1000] * 20, block=False)
        subprocess.run([sys.executable, "-P", "-c", DRAIN, path, end], check=end == "close")
        assert len(q) == 0
        if end == "close":
            q.put_many([b"z" * 1000] * 20, block=False)
        with q.consumer() as c:
            reader = threading.Thread(target=c.drain)
            reader.start()
            for _ in range(10):
                q.put_many([b"z" * 1000] * 20, timeout=60)
            reader.join()


def test_what_a_killed_consumer_had_in_hand_is_ready(tmp_path: Path) -> None:
    """Also while nobody has the role, and others stay attached."""
    kill = """
import os, sys, mpqueue
items = mpqueue.Queue(sys.argv[1]).consumer().reserve_many(3)
os.kill(os.getpid(), 9)
"""
    path = tmp_path / "spool"
    with mpqueue.Queue(path) as q:
        q.put_many([b"x"] * 5)
        subprocess.run([sys.executable, "-P", "-c", kill, path])
        now = q.stats()
        assert (now.reserved_items, now.reserved_bytes, now.ready_items) == (0, 0, 5)
        assert (now.read_seq, now.consumer_attached) == (1, False)
        assert (q.qsize(), q.empty()) == (5, False)
        assert q.get() == b"x"


def test_checkpoint_beside_consumers_that_come_and_go(tmp_path: Path) -> None:
    q = mpqueue.Queue(tmp_path / "spool", segment_size=1 << 16)

    def checkpoint() -> None:
        for _ in range(10):
            q.checkpoint()

    def consume() -> None:
        for number in range(10):
            q.put(b"x" * 100)
            with q.consumer(wait=60) as c:
                assert c.take().seq == number + 1

    assert _together(checkpoint, consume) == []
    q.close()
