"""Goal: Consumer.fileno() is readable whenever a reserve would not wait, and costs nothing else.

Method: poll() before and after each thing that may make an item ready, in this process and others;
where a descriptor must become readable the poll waits without a bound, so a lost ring hangs.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython


def ring(c: mpqueue.Consumer) -> None:
    """Waits until it is readable."""
    assert select.select([c], [], [])[0] == [c]


def quiet(c: mpqueue.Consumer) -> bool:
    return not select.select([c], [], [], 0)[0]


def take(c: mpqueue.Consumer) -> mpqueue.Item:
    """The next item, by the descriptor alone."""
    while True:
        ring(c)
        item = c.reserve(0)
        if item is not None:
            return item


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def settled_tasks(count: int) -> set[str]:
    """The threads once there are so many: the kernel lists one a moment longer than a join."""
    while len(tasks()) != count:
        pass
    return tasks()


@pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])
def test_it_follows_what_is_ready(open_queue: OpenQueue, durability: str) -> None:
    q = open_queue(durability=durability)
    with q.consumer() as c:
        fd = c.fileno()
        assert c.fileno() == fd
        assert quiet(c)
        q.put(b"a")
        item = take(c)
        assert not quiet(c), "a reserve has to find nothing first"
        for look in (lambda: c.reserve(0), c.peek, c.skip, lambda: c.wait(0)):
            assert not look()
            assert quiet(c)
        item.nack()
        item = take(c)
        assert (item.attempts, c.reserve(0), quiet(c)) == (2, None, True)
        c.rewind()
        item = take(c)
        assert (item.attempts, c.reserve_many(5, timeout=0), quiet(c)) == (3, [], True)
        item._unreserve()
        item = take(c)
        assert (item.attempts, c.reserve(0), quiet(c)) == (3, None, True)
        item.ack()
        assert c.reserve(0) is None
        assert quiet(c)


def test_what_was_there_before_is_seen_at_once(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"a")
    with q.consumer() as c:
        c.fileno()
        assert not quiet(c)
        take(c).ack()
        q.seal()
    with q.consumer() as c:
        c.fileno()
        assert not quiet(c)
        with pytest.raises(mpqueue.Sealed):
            c.reserve(0)
        assert not quiet(c)


def test_sealing_rings_once_all_is_settled(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        items = [take(c), take(c)]
        assert c.reserve(0) is None
        q.seal()
        assert c.reserve(0) is None, "it waits for what is in hand"
        items[0].ack()
        assert quiet(c)
        items[1].ack()
        ring(c)
        with pytest.raises(mpqueue.Sealed):
            c.reserve(0)


def test_acks_that_open_the_window_ring(open_queue: OpenQueue) -> None:
    q = open_queue(ack_window=64, durability="none")
    q.put_many([b"%d" % number for number in range(200)])
    with q.consumer() as c:
        c.fileno()
        held = c.reserve_many(1000, timeout=0)
        assert len(held) < 200
        assert c.reserve(0) is None
        seen = len(held)
        while seen < 200:
            c.ack_many(held)
            held = [take(c)]
            seen += 1
        held[0].ack()


def test_another_process_rings(open_queue: OpenQueue, run_python: RunPython) -> None:
    q = open_queue()
    with q.consumer() as c:
        c.fileno()
        for number in range(3):
            assert c.reserve(0) is None
            script = "import mpqueue, sys; mpqueue.Queue(sys.argv[1]).put(sys.argv[2].encode())"
            run_python(script, q.path, number)
            item = take(c)
            assert item.body == b"%d" % number
            item.ack()


def test_damage_rings_and_a_look_does_not_pass_it(open_queue: OpenQueue) -> None:
    """peek() and wait() of a consumer with on_loss once told it of the same damage for ever."""
    q = open_queue(durability="none")
    q.put(b"whole")
    q.put(b"broken" * 20)
    segment = next(Path(q.path).glob("segment-*"))
    raw = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(raw.index(b"brokenbroken"))
        file.write(b"B")
    told: list[mpqueue.Corrupt] = []
    with q.consumer(on_loss=told.append) as c:
        take(c).ack()
        ring(c)
        assert c.wait()
        with pytest.raises(mpqueue.Corrupt):
            c.peek()
        assert not told
        assert not quiet(c)
        assert c.reserve(0) is None
        assert [error.lost_items for error in told] == [1]
        assert quiet(c)


def test_a_queue_that_is_taken_away_rings(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    c = q.consumer()
    c.fileno()
    assert c.reserve(0) is None
    for name in ("meta", "control"):
        os.rename(f"{q.path}/{name}", f"{q.path}/{name}.away")
    try:
        while True:
            ring(c)
            try:
                assert c.reserve(0) is None
            except mpqueue.QueueRemoved:
                break
    finally:
        for name in ("meta", "control"):
            os.rename(f"{q.path}/{name}.away", f"{q.path}/{name}")


@pytest.mark.parametrize("what", ["consumer", "queue"])
def test_closing_rings_for_good(open_queue: OpenQueue, what: str) -> None:
    q = open_queue()
    c = q.consumer()
    poll = select.poll()
    fd = c.fileno()
    poll.register(fd, select.POLLIN)
    assert c.reserve(0) is None
    seen: list[list[tuple[int, int]]] = []
    thread = threading.Thread(target=lambda: seen.append(poll.poll()))
    thread.start()
    (c if what == "consumer" else q).close()
    thread.join()
    assert seen == [[(fd, select.POLLIN)]]
    with pytest.raises(mpqueue.Closed):
        c.fileno()
    with pytest.raises(mpqueue.Closed):
        c.reserve(0)
    assert poll.poll(0) == [(fd, select.POLLIN)]
    del c
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_one_thread_from_the_first_call_to_close(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    before = tasks()
    for _ in range(3):
        c = q.consumer()
        assert tasks() == before
        c.fileno()
        threads = tasks() - before
        assert len(threads) == 1
        status = Path(f"/proc/self/task/{threads.pop()}/status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        for number in set(signal.valid_signals()) - {
            *(signal.SIGKILL, signal.SIGSTOP, signal.SIGBUS, signal.SIGSEGV),
        }:
            assert blocked >> (number - 1) & 1, number
        for _ in range(1000):
            assert c.reserve(0) is None
            c.fileno()
        assert len(tasks() - before) == 1
        c.close()
        assert settled_tasks(len(before)) == before


@pytest.mark.parametrize("armed", [False, True])
def test_the_interpreter_ends_with_it(run_python: RunPython, tmp_path: Path, armed: bool) -> None:
    script = """
    import sys, mpqueue
    q = mpqueue.Queue(sys.argv[1])
    c = q.consumer()
    c.fileno()
    if int(sys.argv[2]):
        assert c.reserve(0) is None
    sys.keep = c
    print("end")
    """
    assert run_python(script, tmp_path / "spool", int(armed)) == "end\n"


def test_a_forked_child_leaves_it_alone(run_python: RunPython, spool: Path) -> None:
    """Its descriptor is the same counter: what the child tears down must not ring here."""
    script = """
    import gc, os, select, sys, warnings
    import mpqueue
    warnings.simplefilter("ignore", DeprecationWarning)
    q = mpqueue.Queue(sys.argv[1])
    c = q.consumer()
    fd = c.fileno()
    def readable(wait=0):
        return bool(select.select([fd], [], [], wait)[0])
    for how in range(4):
        assert c.reserve(0) is None and not readable()
        pid = os.fork()
        if pid == 0:
            assert len(os.listdir("/proc/self/task")) == 1
            try:
                c.fileno()
            except mpqueue.Closed:
                pass
            else:
                os._exit(1)
            if how == 1:
                c.close()
            if how == 2:
                q.close()
            if how == 3:
                q.put(b"of the child")
                assert q.stats().consumer_pid == os.getppid()
            del c
            gc.collect()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        if how < 3:
            assert not readable()
    assert readable(None)
    with c.reserve(0) as item:
        assert item.body == b"of the child"
    c.close()
    assert readable()
    """
    run_python(script, spool)


def test_an_armed_descriptor_costs_no_cpu(open_queue: OpenQueue) -> None:
    """As little as a reserve that blocks: a look in each slice of 100 ms."""
    q = open_queue(durability="none")
    code = "import time, mpqueue, sys; q = mpqueue.Queue(sys.argv[1]); time.sleep(3); q.put(b'')"
    with q.consumer() as c:
        c.fileno()
        assert c.reserve(0) is None
        with subprocess.Popen([sys.executable, "-P", "-c", code, q.path]) as other:
            cpu, began = time.process_time(), time.monotonic()
            item = take(c)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
            print(f"{share:.3%} of a core")
            assert share < 0.01
            item.ack()
        assert other.returncode == 0
