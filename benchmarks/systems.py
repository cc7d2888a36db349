"""The systems that the benchmarks compare: mpqueue and its peers, each at its best settings.

Every role is a generator that yields twice: when it has opened what it needs, and when the loop
that is to be measured is done. What comes after is closing. Loops are written out with bound
methods, so that no adapter stands between the clock and the call. Items are 100 bytes.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BODY = bytes(range(100))
FRAME_BYTES = 160  # what one such item takes in a segment: header 48, body, rounded up to 32


def load(name: str) -> Any:
    """An optional package; peers are not dependencies and bring no types."""
    return importlib.import_module(name)


class System:
    """One way to move items; subclasses write the loops that they can run."""

    name = ""
    note = ""
    package: str | None = None  # what must be installed
    step = 1  # counts are multiples of it

    def prepare(self, directory: Path) -> None:
        """Makes in the parent what producers and consumer inherit."""
        self.directory = directory

    def push(self, count: int) -> Iterator[None]:
        """The producer."""
        raise NotImplementedError(self.name)

    def pull(self, count: int) -> Iterator[None]:
        """The consumer; it acknowledges where the system can."""
        raise NotImplementedError(self.name)

    def cycle(self, count: int) -> Iterator[None]:
        """Put, get and acknowledge in one process."""
        raise NotImplementedError(self.name)


class Mpqueue(System):
    """mpqueue under one durability policy, item by item or in batches."""

    def __init__(self, durability: str, batch: int = 1, **options: int) -> None:
        self.options: dict[str, Any] = {"durability": durability, **options}
        self.step = batch
        self.name = f"mpqueue {durability}" + (f", batches of {batch}" if batch > 1 else "")

    def _open(self) -> Any:
        return load("mpqueue").Queue("queue", **self.options)

    def prepare(self, directory: Path) -> None:
        super().prepare(directory)
        load("mpqueue").Queue(directory / "queue", **self.options).close()

    def push(self, count: int) -> Iterator[None]:
        q = self._open()
        put, put_many, bodies = q.put, q.put_many, [BODY] * self.step
        yield
        if self.step == 1:
            for _ in range(count):
                put(BODY)
        else:
            for _ in range(count // self.step):
                put_many(bodies)
        yield
        q.close()

    def pull(self, count: int) -> Iterator[None]:
        q = self._open()
        consumer = q.consumer()
        reserve, reserve_many, ack_many = (
            consumer.reserve,
            consumer.reserve_many,
            consumer.ack_many,
        )
        yield
        if self.step == 1:
            for _ in range(count):
                reserve().ack()
        else:
            while count:
                items = reserve_many(self.step)
                ack_many(items)
                count -= len(items)
        yield
        q.close()

    def cycle(self, count: int) -> Iterator[None]:
        q = self._open()
        consumer = q.consumer()
        put, reserve = q.put, consumer.reserve
        yield
        for _ in range(count):
            put(BODY)
            reserve().ack()
        yield
        q.close()


class _Inherited(System):
    """A queue object of the parent with put and get, inherited by fork."""

    queue: Any

    def push(self, count: int) -> Iterator[None]:
        put = self.queue.put
        yield
        for _ in range(count):
            put(BODY)
        yield

    def pull(self, count: int) -> Iterator[None]:
        get = self.queue.get
        yield
        for _ in range(count):
            get()
        yield

    def cycle(self, count: int) -> Iterator[None]:
        put, get = self.queue.put, self.queue.get
        yield
        for _ in range(count):
            put(BODY)
            get()
        yield


class MultiprocessingQueue(_Inherited):
    name = "multiprocessing.Queue"
    note = "in memory"

    def prepare(self, directory: Path) -> None:
        self.queue = multiprocessing.get_context("fork").Queue()


class MultiprocessingSimpleQueue(_Inherited):
    name = "multiprocessing.SimpleQueue"
    note = "in memory"

    def prepare(self, directory: Path) -> None:
        self.queue = multiprocessing.get_context("fork").SimpleQueue()


class ThreadQueue(_Inherited):
    name = "queue.SimpleQueue"
    note = "one process only: the floor"

    def prepare(self, directory: Path) -> None:
        self.queue = queue.SimpleQueue()


def _as_is(value: Any) -> Any:
    return value


class FasterFifo(System):
    """faster-fifo without pickling; its default time-out of 10 s is raised."""

    note = "in memory"
    package = "faster_fifo"

    def __init__(self, batch: int = 1) -> None:
        self.step = batch
        self.name = "faster-fifo" + (f", batches of {batch}" if batch > 1 else "")

    def prepare(self, directory: Path) -> None:
        load("faster_fifo_reduction")
        self.queue = load("faster_fifo").Queue(max_size_bytes=64 << 20, loads=bytes, dumps=_as_is)

    def push(self, count: int) -> Iterator[None]:
        put, put_many, bodies = self.queue.put, self.queue.put_many, [BODY] * self.step
        yield
        if self.step == 1:
            for _ in range(count):
                put(BODY, True, 600.0)
        else:
            for _ in range(count // self.step):
                put_many(bodies, True, 600.0)
        yield

    def pull(self, count: int) -> Iterator[None]:
        get, get_many = self.queue.get, self.queue.get_many
        yield
        if self.step == 1:
            for _ in range(count):
                get(True, 600.0)
        else:
            while count:
                count -= len(get_many(True, 600.0, self.step))
        yield


class ZmqIpc(System):
    """pyzmq PUSH to PULL over ipc, copying (faster for small messages), high-water marks raised."""

    note = "in memory"
    package = "zmq"

    def __init__(self, batch: int = 1) -> None:
        self.step = batch
        self.name = "pyzmq ipc" + (f", {batch} a multipart message" if batch > 1 else "")

    def _socket(self, kind: str) -> Any:
        zmq = load("zmq")
        socket = zmq.Context().socket(getattr(zmq, kind))
        socket.setsockopt(zmq.SNDHWM, 100_000)
        socket.setsockopt(zmq.RCVHWM, 100_000)
        return socket

    def push(self, count: int) -> Iterator[None]:
        socket = self._socket("PUSH")
        zmq = load("zmq")
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 1)
        socket.connect("ipc://socket")
        socket.poll(None, zmq.POLLOUT)  # connected: the handshake is not measured
        send, send_multipart, bodies = socket.send, socket.send_multipart, [BODY] * self.step
        yield
        if self.step == 1:
            for _ in range(count):
                send(BODY)
        else:
            for _ in range(count // self.step):
                send_multipart(bodies)
        yield
        socket.close()

    def pull(self, count: int) -> Iterator[None]:
        socket = self._socket("PULL")
        socket.bind("ipc://socket")
        recv, recv_multipart = socket.recv, socket.recv_multipart
        yield
        if self.step == 1:
            for _ in range(count):
                recv()
        else:
            while count:
                count -= len(recv_multipart())
        yield
        socket.close()


# ---- on disk -------------------------------------------------------------------------------------


class SqliteAckQueue(System):
    name = "persist-queue SQLiteAckQueue"
    note = "durable (WAL, synchronous FULL)"
    package = "persistqueue"

    def _open(self) -> Any:
        return load("persistqueue").SQLiteAckQueue("ack", auto_commit=True, timeout=600.0)

    def prepare(self, directory: Path) -> None:
        load("persistqueue").SQLiteAckQueue(str(directory / "ack"), auto_commit=True).close()

    def push(self, count: int) -> Iterator[None]:
        q = self._open()
        yield
        for _ in range(count):
            q.put(BODY)
        yield
        q.close()

    def cycle(self, count: int) -> Iterator[None]:
        q = self._open()
        yield
        for _ in range(count):
            q.put(BODY)
            q.ack(q.get())
        yield
        q.close()


class LiteQueue(System):
    name = "litequeue"
    note = "made durable: synchronous FULL"
    package = "litequeue"

    def _open(self, path: str = "lite.db") -> Any:
        made = load("litequeue").LiteQueue(path, timeout=600.0)
        made.conn.execute("PRAGMA synchronous = FULL")
        return made

    def prepare(self, directory: Path) -> None:
        self._open(str(directory / "lite.db")).close()

    def push(self, count: int) -> Iterator[None]:
        q = self._open()
        text = BODY.decode("latin-1")
        yield
        for _ in range(count):
            q.put(text)
        yield
        q.close()

    def cycle(self, count: int) -> Iterator[None]:
        q = self._open()
        text = BODY.decode("latin-1")
        yield
        for _ in range(count):
            q.put(text)
            q.done(q.pop().message_id)
        yield
        q.close()


class DiskcacheDeque(System):
    name = "diskcache.Deque"
    note = "made durable: synchronous FULL; no ack"
    package = "diskcache"

    def _open(self, directory: str = "cache") -> Any:
        diskcache = load("diskcache")
        cache = diskcache.Cache(
            directory, eviction_policy="none", sqlite_synchronous=2, timeout=600.0
        )
        return diskcache.Deque.fromcache(cache)

    def prepare(self, directory: Path) -> None:
        self._open(str(directory / "cache")).cache.close()

    def push(self, count: int) -> Iterator[None]:
        q = self._open()
        yield
        for _ in range(count):
            q.append(BODY)
        yield
        q.cache.close()

    def cycle(self, count: int) -> Iterator[None]:
        q = self._open()
        yield
        for _ in range(count):
            q.append(BODY)
            q.popleft()
        yield
        q.cache.close()


class Queuelib(System):
    name = "queuelib.FifoDiskQueue"
    note = "NOT durable: no sync call; one process; no ack"
    package = "queuelib"

    def push(self, count: int) -> Iterator[None]:
        q = load("queuelib").FifoDiskQueue("fifo")
        yield
        for _ in range(count):
            q.push(BODY)
        yield
        q.close()

    def cycle(self, count: int) -> Iterator[None]:
        q = load("queuelib").FifoDiskQueue("fifo")
        yield
        for _ in range(count):
            q.push(BODY)
            q.pop()
        yield
        q.close()


class BareFile(System):
    """The least that durability can cost: pwrite + fdatasync of the same bytes, in a loop."""

    note = "durable; no queue at all"

    def __init__(self, *, preallocated: bool) -> None:
        self.preallocated = preallocated
        self.name = "pwrite + fdatasync, " + ("preallocated" if preallocated else "growing file")

    def push(self, count: int) -> Iterator[None]:
        frame = BODY.ljust(FRAME_BYTES, b"\0")
        fd = os.open("bare", os.O_CREAT | os.O_RDWR, 0o600)
        if self.preallocated:
            os.posix_fallocate(fd, 0, 16 << 20)
            os.fsync(fd)
        pwrite, fdatasync = os.pwrite, os.fdatasync
        yield
        for offset in range(0, count * FRAME_BYTES, FRAME_BYTES):
            pwrite(fd, frame, offset)
            fdatasync(fd)
        yield
        os.close(fd)
