"""Goal: a second `__init__()` is refused before it changes anything.

Method: each is used, begun again with the same arguments, and used on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncQueue
from mpqueue.inbox import Inbox
from mpqueue.logging import QueueHandler, QueueListener
from mpqueue.outbox import Relay


def refused(thing: object, *args: object) -> None:
    before = dict(vars(thing))
    with pytest.raises(TypeError, match="already"):
        thing.__init__(*args)  # type: ignore[misc]
    assert vars(thing) == before


def test_a_queue_and_what_belongs_to_it(open_queue: OpenQueue) -> None:
    """It once forgot its consumer, and what get() had handed out."""
    q = open_queue()
    q.put_many([b"one", b"two"])
    assert q.get() == b"one"
    refused(q, q.path)
    q.task_done()
    assert q.get() == b"two"
    q.task_done()
    q.checkpoint()
    batch = q.batch()
    batch.append(b"three")
    refused(batch, q, None)
    assert len(batch.commit()) == 1
    refused(q.dead, q)
    with mpqueue.inspect(q.path) as view:
        refused(view, q.path)
    q.close()
    refused(q, q.path)
    assert q.closed


def test_a_consumer(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"one")
    with q.consumer() as c:
        item = c.reserve()
        refused(c, q)
        item.ack()


def test_what_failed_to_open_may_be_opened(tmp_path: Path) -> None:
    q = mpqueue.Queue.__new__(mpqueue.Queue)
    with pytest.raises(mpqueue.NotAQueue):
        q.__init__(tmp_path / "spool", create=False)  # type: ignore[misc]
    q.__init__(tmp_path / "spool")  # type: ignore[misc]
    with q:
        assert q.put(b"") == 1


def test_those_of_an_event_loop(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            put = asyncio.create_task(q.put(b"one"))
            await asyncio.sleep(0)
            refused(q, q.queue)
            await put
            refused(c, q.queue, q._threads, None, {})
            (await c.reserve()).ack()

    asyncio.run(main())


def test_those_with_a_database(open_queue: OpenQueue, tmp_path: Path) -> None:
    q = open_queue()
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection,
        contextlib.closing(sqlite3.connect(tmp_path / "db")) as another,
    ):
        with Relay(connection, q) as relay:
            refused(relay, connection, q)
            with pytest.raises(BlockingIOError):
                Relay(another, q)
        with q.consumer() as c:
            inbox = Inbox(connection, c, allow_weak=True)
            refused(inbox, connection, c)


def test_those_of_logging(open_queue: OpenQueue) -> None:
    q = open_queue()
    handler, listener = QueueHandler(q), QueueListener(q)
    refused(handler, q)
    listener.start()
    refused(listener, q)
    listener.stop()
