"""Goal: a dead parent is dead, however many of its children live.

Method: the parent is killed with SIGKILL while forked children, which inherited its handle, go on;
its unfinished put must become a gap and its consumer role be free for somebody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.reader.frame import CLAIMED

_PARENT = """
import os, signal, sys
import mpqueue
q = mpqueue.Queue(sys.argv[1], create=False)
q.put(b"parent")
if "consume" in sys.argv:
    c = q.consumer()
    item = c.reserve()
for number in range(2):
    if os.fork() == 0:
        if number:
            q.put(b"child")  # one joined, one never did
        os.write(1, b"%d\\n" % os.getpid())
        signal.pause()
        os._exit(0)
os.write(1, b"%d\\n" % os.getpid())
if "claim" in sys.argv:
    large = b"x" * (32 << 20)
    while True:
        q.put(large)
signal.pause()
"""


class Family:
    """A parent and its two children."""

    def __init__(self, path: str, *what: str) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-P", "-c", _PARENT, path, *what], stdout=subprocess.PIPE
        )
        assert self.parent.stdout is not None
        pids = {int(self.parent.stdout.readline()) for _ in range(3)}
        self.children = pids - {self.parent.pid}

    def kill_parent(self) -> None:
        self.parent.kill()
        assert self.parent.wait() == -signal.SIGKILL
        for pid in self.children:
            os.kill(pid, 0)

    def end(self) -> None:
        self.parent.kill()
        self.parent.wait()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        assert self.parent.stdout is not None
        self.parent.stdout.close()


@pytest.fixture
def families() -> Iterator[list[Family]]:
    made: list[Family] = []
    yield made
    for family in made:
        family.end()


@pytest.mark.crash
def test_consumer_role_of_a_dead_parent_is_free(
    open_queue: OpenQueue, families: list[Family]
) -> None:
    q = open_queue()
    families.append(Family(q.path, "consume"))
    with pytest.raises(mpqueue.ConsumerBusy) as busy:
        q.consumer()
    assert busy.value.pid == families[0].parent.pid
    assert q.stats().reserved_items == 1
    families[0].kill_parent()
    with q.consumer() as c:
        first, second = c.reserve_many(2)
        assert (first.body, first.attempts) == (b"parent", 2)
        assert (second.body, second.attempts) == (b"child", 1)
        c.ack_many([first, second])
        assert q.stats().consumer_pid == os.getpid()
    assert q.stats().members_alive == 2  # this process and the child that joined


@pytest.mark.crash
def test_standby_gets_the_role_of_a_dead_parent(
    open_queue: OpenQueue, families: list[Family]
) -> None:
    q = open_queue()
    families.append(Family(q.path, "consume"))
    standby = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            "import sys, mpqueue\n"
            "q = mpqueue.Queue(sys.argv[1])\n"
            "print(1, flush=True)\n"
            "with q.consumer(wait=3600) as c, c.reserve() as item:\n"
            "    print(item.body.decode(), item.attempts)\n",
            q.path,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert standby.stdout is not None
    assert standby.stdout.readline() == "1\n"
    families[0].kill_parent()
    assert standby.communicate()[0] == "parent 2\n"


def _drain(consumer: mpqueue.Consumer) -> None:
    for _ in consumer.drain():
        pass


def _stop_in_put(q: mpqueue.Queue, pid: int) -> None:
    """Stops a process that puts large items in the middle of a copy: the tail has moved."""
    while True:
        before = q.stats().next_seq
        while q.stats().next_seq == before:
            pass
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        with mpqueue.inspect(q.path) as view:
            if any(frame.kind == CLAIMED for frame in view.walk()):
                return
        with q.consumer() as c:
            _drain(c)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["none", "group"])
def test_unfinished_put_of_a_dead_parent_becomes_a_gap(
    open_queue: OpenQueue, families: list[Family], durability: str
) -> None:
    q = open_queue(durability=durability, max_segments=8)
    families.append(Family(q.path, "claim"))
    pid = families[0].parent.pid
    _stop_in_put(q, pid)
    with q.consumer() as c:
        _drain(c)
        while q.stats().blocked_on_claim != pid:
            assert not c.wait(0.001)
        assert (len(q), q.stats().claim_gaps) == (1, 0)
        q.put(b"after")  # waits for nobody
        assert c.reserve(timeout=0) is None
        families[0].kill_parent()
        with c.reserve() as item:
            assert item.body == b"after"
        stats = q.stats()
        assert (stats.claim_gaps, stats.depth, stats.blocked_on_claim) == (1, 0, 0)
        assert stats.items_enqueued == stats.items_acked + 1
        assert (stats.bytes_enqueued, stats.backlog_bytes) == (stats.bytes_settled, 0)


@pytest.mark.crash
def test_children_go_on_when_their_parent_is_killed(open_queue: OpenQueue, spool: Path) -> None:
    """Blocked in put on a full queue, forked by multiprocessing; the parent dies meanwhile."""
    q = open_queue(capacity=1)
    q.put(b"full")
    code = (
        "import multiprocessing, os, sys, mpqueue\n"
        "q = mpqueue.Queue(sys.argv[1])\n"
        "assert q.put(b'', block=False, on_full='drop') is None\n"
        "def put(number):\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    q.put(b'%d' % number)\n"
        "context = multiprocessing.get_context('fork')\n"
        "for number in range(3):\n"
        "    context.Process(target=put, args=(number,)).start()\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", code, q.path], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    for _ in range(3):
        assert parent.stdout.readline()
    while q.stats().full < 4:
        pass
    parent.kill()
    parent.wait()
    with q.consumer() as c:
        bodies = []
        for _ in range(4):
            with c.reserve() as item:
                bodies.append(item.body)
    assert sorted(bodies) == [b"0", b"1", b"2", b"full"]
    assert parent.stdout.read() == b""  # the children have ended
    parent.stdout.close()
    while q.stats().members_alive > 1:  # the kernel closes their pipe and frees their byte in turn
        pass
