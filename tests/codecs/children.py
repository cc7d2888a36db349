"""What runs in the processes of test_processes.py: a module, so that spawn can import it."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import numpy

import mpqueue
from mpqueue import codecs


class Job(msgspec.Struct, frozen=True):
    """An item with a type."""

    producer: int
    number: int


class Point:
    """An object that only pickle can carry."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)


PER_CHILD = 20
MAKERS: dict[str, tuple[Any, Any]] = {
    "msgspec": (codecs.Msgspec(Job), Job),
    "json+zstd": ("json+zstd", lambda producer, number: [producer, number]),
    "numpy": ("numpy", lambda producer, number: numpy.array([producer, number])),
    "unsafe-pickle": ("unsafe-pickle", lambda producer, number: Point(producer * 100 + number)),
}


def value_of(name: str, producer: int, number: int) -> Any:
    """The item that a producer puts."""
    return MAKERS[name][1](producer, number)


def put_values(name: str, queue: mpqueue.Queue[Any], producer: int) -> int:
    """Puts by each of the ways."""
    values = [value_of(name, producer, number) for number in range(PER_CHILD)]
    queue.put(values[0])
    queue.put_nowait(values[1])
    queue.put_many(values[2:10])
    with queue.batch() as batch:
        for value in values[10:]:
            batch.append(value)
    return os.getpid()


def check_values(name: str, queue: mpqueue.Queue[Any], producers: int) -> None:
    """Every producer's items are there, in its order."""
    left = {producer: list(range(PER_CHILD)) for producer in range(producers)}
    for _ in range(producers * PER_CHILD):
        value = queue.get()
        for producer, numbers in left.items():
            if numbers and numpy.array_equal(value, value_of(name, producer, numbers[0])):
                numbers.pop(0)
                break
        else:
            raise AssertionError(f"out of place: {value!r}")
        queue.task_done()
    assert queue.join(timeout=0)


def processes(method: str, name: str, path: str) -> None:
    """Children of a method put through the handle that they inherit or unpickle."""
    context: Any = multiprocessing.get_context(method)
    with mpqueue.Queue(path, codec=MAKERS[name][0]) as queue:
        children = [
            context.Process(target=put_values, args=(name, queue, producer))
            for producer in range(3)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        check_values(name, queue, 3)


def pools(method: str, name: str, path: str) -> None:
    """A Pool gets the handle with each task, an executor once at its start."""
    context: Any = multiprocessing.get_context(method)
    with mpqueue.Queue(path, codec=MAKERS[name][0]) as queue:
        with context.Pool(2) as pool:
            pids = pool.starmap(put_values, [(name, queue, producer) for producer in range(3)])
        assert os.getpid() not in pids
        check_values(name, queue, 3)
    with (
        mpqueue.Queue(path, codec=MAKERS[name][0]) as queue,
        ProcessPoolExecutor(2, context, _keep, (name, queue)) as executor,
    ):
        list(executor.map(_put_kept, range(3)))
        check_values(name, queue, 3)


_kept: tuple[str, mpqueue.Queue[Any]]


def _keep(name: str, queue: mpqueue.Queue[Any]) -> None:
    global _kept
    _kept = name, queue


def _put_kept(producer: int) -> None:
    put_values(*_kept, producer)


def joinable(method: str, path: str, *, ours: bool) -> None:
    """A program for multiprocessing.JoinableQueue; one line chooses the queue."""
    context: Any = multiprocessing.get_context(method)
    q = mpqueue.Queue(path, codec="unsafe-pickle") if ours else context.JoinableQueue()
    worker = context.Process(target=_consume, args=(q,))
    producers = [context.Process(target=_produce, args=(q, index)) for index in range(2)]
    for child in (worker, *producers):
        child.start()
    for child in producers:
        child.join()
    q.join()
    q.put(None, True, None)
    q.join()
    worker.join()
    q.close()
    q.join_thread()
    assert [child.exitcode for child in (worker, *producers)] == [0, 0, 0]


def _produce(q: Any, index: int) -> None:
    for number in range(25):
        q.put({"from": index, "point": Point(number)})
    q.put_nowait((index, "end"))
    q.close()
    q.join_thread()


def _consume(q: Any) -> None:
    seen: list[Any] = []
    while (value := q.get()) is not None:
        seen.append(value)
        q.task_done()
    q.task_done()
    assert q.empty()
    for index in range(2):
        own = [v["point"].x for v in seen if isinstance(v, dict) and v["from"] == index]
        assert own == list(range(25))
        assert (index, "end") in seen
    q.cancel_join_thread()


def broken(method: str, path: str) -> None:
    """A CodecError travels home from a pool; the item stays where it was."""
    context: Any = multiprocessing.get_context(method)
    with mpqueue.Queue(path, codec="json") as queue:
        with mpqueue.Queue(path, raw=True) as raw:
            raw.put(b"no json")
        with ProcessPoolExecutor(1, context) as executor:
            error = executor.submit(_take, queue).exception()
        assert isinstance(error, mpqueue.CodecError), error
        assert (error.item, error.id.endswith(":1")) == (None, True)
        with queue.consumer(wait=60) as consumer:
            assert consumer.skip() == 1


def _take(queue: mpqueue.Queue[Any]) -> Any:
    with queue.consumer() as consumer:
        item = consumer.reserve()
        assert item is not None
        with item:
            return item.value
