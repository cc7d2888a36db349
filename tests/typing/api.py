"""How the types look to a user. Never run: test_typing.py lets mypy reveal them."""

from __future__ import annotations

import sqlite3
from typing import Any, reveal_type

import msgspec
import numpy

import mpqueue
from mpqueue import Batch, Consumer, Item, Queue, codecs
from mpqueue.aio import AsyncQueue
from mpqueue.inbox import Inbox


class Job(msgspec.Struct):
    number: int


def plain() -> None:
    q = Queue("spool", durability="none")
    reveal_type(q)  # Queue[bytes]
    reveal_type(q.put(b"x"))  # int
    q.put(bytearray(b"x"))
    q.put_many([memoryview(b"x"), b"y"])
    q.put("text")  # error
    q.put({"a": 1})  # error
    reveal_type(q.get())  # bytes
    c = q.consumer()
    reveal_type(c)  # Consumer[bytes]
    reveal_type(c.reserve(timeout=5.0))  # Item[bytes] | None
    with c.reserve() as only:
        reveal_type(only)  # Item[bytes]
    for item in c:
        reveal_type(item.value)  # bytes
        reveal_type(item.body)  # bytes


def by_object() -> None:
    q = Queue("spool", codec=codecs.Msgspec(Job), max_item=100)
    reveal_type(q)  # Queue[Job]
    q.put(Job(1))
    q.put_many([Job(1)])
    q.put(b"x")  # error
    q.put_nowait({"number": 1})  # error
    q.put_many([b"x"])  # error
    reveal_type(q.put(Job(1), on_full="drop"))  # int | None
    reveal_type(q.get().number)  # int
    with q.batch() as batch:
        reveal_type(batch)  # Batch[Job]
        batch.append(Job(1))
        batch.append(b"x")  # error
        reveal_type(batch.commit())  # range | list[int]
    with q.consumer() as consumer:
        reveal_type(consumer.reserve_many(5))  # list[Item[Job]]
        reveal_type(consumer.queue)  # Queue[Job]
        reveal_type(consumer.take())  # Item[Job]
        reveal_type(consumer.take(0))  # Item[Job] | None
        reveal_type(consumer.peek())  # Item[Job] | None
        for item in consumer.drain():
            reveal_type(item.value)  # Job
            reveal_type(item.headers)  # dict[str, str]
            reveal_type(item.body)  # bytes
            consumer.ack(item)
    packed = Queue("spool", codec=codecs.Zstd(codecs.Msgspec(Job, "msgpack")))
    reveal_type(packed)  # Queue[Job]
    named = Queue("spool", codec=codecs.Zstd("json"))
    reveal_type(named)  # Queue[Any]
    reveal_type(Queue("spool", codec=codecs.Zstd()))  # Queue[bytes]
    sealed = Queue("spool", codec=codecs.Aes(codecs.Zstd(codecs.Msgspec(Job)), keys={1: b""}))
    reveal_type(sealed)  # Queue[Job]
    reveal_type(Queue("spool", codec=codecs.Aes(key_file="keys")))  # Queue[bytes]
    reveal_type(Queue("spool", codec=codecs.Aes("json", key_file="keys")))  # Queue[Any]
    reveal_type(codecs.Aes(codecs.Msgspec(Job), key_file="keys").bind("0").decode(b""))  # Job
    codecs.Aes("json", keys={"1": b""})  # error
    arrays = Queue("spool", codec=codecs.Numpy(numpy.float32))
    arrays.put(numpy.zeros(3))
    arrays.put([0.0])  # error


def by_name() -> None:
    q = Queue("spool", codec="json")
    reveal_type(q)  # Queue[Any]
    q.put({"a": 1})
    reveal_type(Queue("spool", codec="bytes+zstd"))  # Queue[bytes]
    reveal_type(Queue("spool", codec="json", raw=True))  # Queue[bytes]
    declared: Queue[dict[str, int]] = Queue("spool", codec="json")
    reveal_type(declared.get())  # dict[str, int]
    explicit = Queue[dict[str, int]]("spool")
    reveal_type(explicit)  # Queue[dict[str, int]]
    Queue("spool", codec=5)  # error
    Queue("spool", codecs="json")  # error
    Queue("spool", segment_size="16M")  # error


async def awaited() -> None:
    q = AsyncQueue(Queue("spool"))
    reveal_type(q)  # AsyncQueue[bytes]
    reveal_type(await q.put(bytearray(b"x")))  # int
    await q.put("text")  # error
    async with AsyncQueue(Queue("spool", codec=codecs.Msgspec(Job))) as jobs:
        reveal_type(jobs)  # AsyncQueue[Job]
        await jobs.put(Job(1), 5.0)
        await jobs.put_many([Job(1)])
        await jobs.put(b"x")  # error
        jobs.put_nowait(b"x")  # error
        async with jobs.consumer() as consumer:
            reveal_type(consumer)  # AsyncConsumer[Job]
            reveal_type(await consumer.reserve())  # Item[Job]
            reveal_type(await consumer.reserve(0))  # Item[Job] | None
            reveal_type(await consumer.reserve_many(5))  # list[Item[Job]]
            reveal_type(consumer.consumer)  # Consumer[Job]
            async for item in consumer:
                reveal_type(item.value)  # Job
                await consumer.ack(item, durable=True)


def once(queue: Queue[Job], connection: sqlite3.Connection) -> None:
    with queue.consumer() as consumer, Inbox(connection, consumer) as inbox:
        for item in consumer:
            with inbox.once(item) as fresh:
                reveal_type(fresh)  # bool
        with inbox.once_many(consumer.reserve_many(5)) as items:
            reveal_type(items)  # list[Item[Job]]
    Inbox("database", consumer)  # error


class Mine:
    """No base class is needed."""

    name = "mine"

    def encode(self, value: complex, /) -> bytes:
        return repr(value).encode()

    def decode(self, body: bytes, /) -> complex:
        return complex(body.decode())


class HalfACodec:
    name = "half"

    def encode(self, value: complex, /) -> bytes:
        return b""


def own() -> None:
    reveal_type(Queue("spool", codec=Mine()))  # Queue[complex]
    Queue("spool", codec=HalfACodec())  # error
    codec: codecs.Codec[complex] = Mine()
    reveal_type(codecs.Zstd(codec).decode(b""))  # complex
    reveal_type(mpqueue.codecs.lookup("json"))  # Codec[Any]


def annotated(
    queue: Queue[Job], consumer: Consumer[Job], item: Item[Job], batch: Batch[Job]
) -> None:
    consumer.ack(item)
    batch.append(item.value)
    untyped: Queue = Queue("spool")
    reveal_type(untyped)  # Queue[bytes]
    error = mpqueue.CodecError()
    reveal_type(error.item)  # Item[Any] | None
    anything: Queue[Any] = queue
    anything.put(1)
