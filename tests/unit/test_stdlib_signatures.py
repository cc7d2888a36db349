"""Goal: code written for queue.Queue works when the queue is swapped.

Method: compare signatures, call what has more parameters the way the standard library allows, and
run the standard QueueListener over a Queue unchanged.
"""

from __future__ import annotations

import inspect
import logging
import logging.handlers
import os
import pickle
import queue
import threading
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue

STANDARD = ["put", "put_nowait", "get", "get_nowait", "task_done", "join", "qsize", "empty", "full"]


@pytest.mark.parametrize("name", STANDARD)
def test_parameters_are_those_of_the_standard_queue(name: str) -> None:
    """And what is more comes behind them and has a default."""
    ours = list(inspect.signature(getattr(mpqueue.Queue, name)).parameters.values())
    theirs = list(inspect.signature(getattr(queue.Queue, name)).parameters.values())
    named, more = ours[1 : len(theirs)], ours[len(theirs) :]  # without self
    assert [(p.name, p.kind, p.default) for p in named] == [
        (p.name, p.kind, p.default) for p in theirs[1:]
    ]
    assert all(p.default is not p.empty for p in more)


@pytest.mark.parametrize("kind", [mpqueue.Queue, mpqueue.Consumer, mpqueue.Item])
def test_every_method_shows_its_signature(kind: type) -> None:
    """help() and editors show it; a stub is not there at run time."""
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and callable(method):
            assert "self" in inspect.signature(method).parameters, name
            assert "$self" not in (method.__doc__ or ""), name


def test_put_takes_block_and_timeout_like_the_standard_queue(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=5, durability="none")
    q.put(b"a", True, None)
    q.put(b"b", False)
    q.put(b"c", block=True, timeout=1.5)
    q.put(item=b"d")
    q.put_nowait(b"e")
    for call in (
        lambda: q.put(b"f", False),
        lambda: q.put(b"f", True, 0.001),
        lambda: q.put_nowait(b"f"),
    ):
        with pytest.raises(queue.Full):
            call()
    assert q.full()
    assert q.qsize() == 5


def test_get_task_done_and_join(open_queue: OpenQueue) -> None:
    q = open_queue()
    assert q.empty()
    q.put_many([b"a", b"b", b""])
    assert (q.qsize(), len(q)) == (3, 3)
    assert q.get() == b"a"
    assert q.get(True, 5.0) == b"b"
    assert (q.qsize(), len(q)) == (1, 3)
    q.task_done()
    assert len(q) == 2
    assert q.join(timeout=0) is False
    assert q.get_nowait() == b""
    with pytest.raises(queue.Empty):
        q.get(block=False)
    with pytest.raises(mpqueue.Empty):
        q.get(timeout=0.001)
    q.task_done()
    q.task_done()
    assert q.join() is True
    with pytest.raises(ValueError, match="too many times"):
        q.task_done()


def test_payload_without_task_done_comes_again_after_close(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"kept")
    assert q.get() == b"kept"
    q.close()
    assert open_queue().get() == b"kept"


def test_workers_share_get_in_threads(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    count = 200
    seen: list[bytes] = []

    def work() -> None:
        while (body := q.get()) != b"stop":
            seen.append(body)
            q.task_done()
        q.task_done()

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    bodies = [b"%d" % number for number in range(count)]
    q.put_many(bodies + [b"stop"] * len(workers))
    for worker in workers:
        worker.join()
    assert sorted(seen) == sorted(bodies)
    assert q.join(timeout=0)


def test_get_raises_shutdown_when_sealed_and_drained(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"last")
    q.seal()
    with pytest.raises(getattr(queue, "ShutDown", mpqueue.Sealed)):
        q.put(b"more")
    assert q.get() == b"last"
    q.task_done()
    with pytest.raises(mpqueue.Sealed):
        q.get()


def test_join_ends_when_the_queue_is_closed(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"never taken")
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(mpqueue.Closed):
            q.join()
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    q.close()
    waiter.join()
    assert ended.is_set()


class _Channel:
    """What QueueListener wants of a queue, over bytes: records travel pickled between threads."""

    def __init__(self, q: mpqueue.Queue) -> None:
        self._q = q
        self.task_done = q.task_done

    def get(self, block: bool) -> object:
        return pickle.loads(self._q.get(block))

    def put_nowait(self, record: object) -> None:
        self._q.put_nowait(pickle.dumps(record))


def test_standard_listener_acks_after_the_handler_wrote(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    channel = _Channel(q)
    written: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    listener = logging.handlers.QueueListener(channel, Handler())
    listener.start()
    for number in range(20):
        channel.put_nowait(logging.makeLogRecord({"msg": f"line {number}"}))
    listener.stop()
    assert written == [f"line {number}" for number in range(20)]
    assert q.join(timeout=60)


def test_task_done_acks_what_its_own_thread_got(tmp_path: Path) -> None:
    """The idiom of workers: get, work, task_done; the slow one keeps its own payload."""
    path = tmp_path / "spool"
    first_got, second_done = threading.Event(), threading.Event()
    with mpqueue.Queue(path) as q:
        q.put_many([b"slow", b"fast", b"handed on"])

        def slow() -> None:
            assert q.get() == b"slow"
            first_got.set()
            second_done.wait()

        worker = threading.Thread(target=slow)
        worker.start()
        first_got.wait()
        assert q.get() == b"fast"
        q.task_done()
        second_done.set()
        worker.join()
        assert q.get() == b"handed on"
        q.task_done()  # its own again, not the one that a dead thread has left
        assert len(q) == 1
        q.task_done()  # none of its own: the oldest of all
        assert len(q) == 0
        with pytest.raises(ValueError, match="too many times"):
            q.task_done()


def test_a_closed_queue_keeps_no_file_and_no_mapping(tmp_path: Path) -> None:
    path = str(tmp_path / "spool")
    q = mpqueue.Queue(path)
    q.put(b"1")
    with q.consumer() as c:
        c.take()
    q.close()
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    maps = Path("/proc/self/maps").read_text()
    assert not [link for link in links if path in link]
    assert path not in maps
