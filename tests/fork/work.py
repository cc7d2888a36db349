"""What runs in the processes of the fork tests: a module of its own, so that spawn can import it.

`preload` opens the queue when the module is imported, as a preloading server does.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import mpqueue

METHODS = ("os", "c", "fork", "spawn", "forkserver")
CONTEXTS = ("fork", "spawn", "forkserver")


def run(method: str, number: int, call: Callable[..., object], *arguments: object) -> None:
    """Runs call(index, *arguments) in so many processes and waits for them to succeed.

    "c" is a fork that Python does not know of, so the parent may have no other thread.
    """
    if method in ("os", "c"):
        # PyDLL keeps the interpreter lock.
        fork = os.fork if method == "os" else ctypes.PyDLL(None).fork
        pids = []
        for index in range(number):
            pid = fork()
            if pid == 0:
                status = 1
                try:
                    call(index, *arguments)
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * number
        return
    context: Any = multiprocessing.get_context(method)
    children = [context.Process(target=call, args=(i, *arguments)) for i in range(number)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * number


def put_numbers(index: int, queue: mpqueue.Queue, count: int) -> None:
    """Puts `index:0` ... one by one and in batches."""
    for start in range(0, count, 10):
        queue.put(b"%d:%d" % (index, start))
        queue.put_many(b"%d:%d" % (index, start + i) for i in range(1, 10))


def check_numbers(queue: mpqueue.Queue, number: int, count: int) -> None:
    """All of them are there, each process's in order, and the counters know it."""
    expected = [0] * number
    with queue.consumer() as consumer:
        for item in consumer.drain():
            index, value = map(int, item.body.split(b":"))
            assert value == expected[index], f"process {index}: {value} came, {expected[index]} due"
            assert item.attempts == 1
            expected[index] += 1
    assert expected == [count] * number
    stats = queue.stats()
    assert (stats.items_enqueued, stats.items_acked) == (number * count, number * count)
    assert (stats.claim_gaps, stats.depth, stats.items_redelivered) == (0, 0, 0)


def put_one(queue: mpqueue.Queue, body: bytes) -> int:
    """A task of a pool."""
    return queue.put(body, block=False)


_opened: mpqueue.Queue


def open_here(path: str) -> None:
    """Initializer of a pool."""
    global _opened
    _opened = mpqueue.Queue(path)


def put_opened(body: bytes) -> int:
    """A task of a pool with that initializer."""
    return _opened.put(body)


def executor(method: str, **options: Any) -> ProcessPoolExecutor:
    """Two workers, started this way."""
    return ProcessPoolExecutor(2, multiprocessing.get_context(method), **options)
