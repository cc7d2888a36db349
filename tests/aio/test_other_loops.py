"""Goal: the descriptor serves other event loops: select, trio, gevent, and uvloop under aio.

Method: an item at a time from another process, each asked for when the one before was settled.
"""

from __future__ import annotations

import asyncio
import selectors
import subprocess
import sys

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue.aio import AsyncQueue

ROUNDS = 300

_ONE_BY_ONE = """
import sys
import mpqueue
q = mpqueue.Queue(sys.argv[1])
for number in range(int(sys.argv[2])):
    q.put(b"%d" % number)
    q.join()
"""


def one_by_one(q: mpqueue.Queue) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-c", _ONE_BY_ONE, q.path, str(ROUNDS)])


def test_selectors(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    with q.consumer() as c, selectors.DefaultSelector() as selector, one_by_one(q):
        selector.register(c, selectors.EVENT_READ)
        for number in range(ROUNDS):
            while (item := c.reserve(0)) is None:
                selector.select()
            assert item.body == b"%d" % number
            item.ack()


def test_trio(open_queue: OpenQueue) -> None:
    trio = pytest.importorskip("trio")
    q = open_queue(durability="none")

    async def consume(c: mpqueue.Consumer) -> None:
        for number in range(ROUNDS):
            while (item := c.reserve(0)) is None:
                await trio.lowlevel.wait_readable(c.fileno())
            assert item.body == b"%d" % number
            item.ack()

    with q.consumer() as c, one_by_one(q):
        trio.run(consume, c)


def test_gevent(open_queue: OpenQueue) -> None:
    gevent = pytest.importorskip("gevent")
    socket = pytest.importorskip("gevent.socket")
    q = open_queue(durability="none")
    ticks = 0

    def others() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            gevent.sleep(0.001)

    other = gevent.spawn(others)
    with q.consumer() as c, one_by_one(q):
        for number in range(ROUNDS):
            while (item := c.reserve(0)) is None:
                socket.wait_read(c.fileno())
            assert item.body == b"%d" % number
            item.ack()
        other.kill()
    assert ticks > 1


def test_uvloop(open_queue: OpenQueue) -> None:
    uvloop = pytest.importorskip("uvloop")
    q = open_queue(durability="none")

    async def main() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with AsyncQueue(open_queue()) as aq, aq.consumer() as c:
            number = 0
            async for item in c:
                assert item.body == b"%d" % number
                number += 1
                if number == ROUNDS:
                    item.ack()
                    break
            await aq.put(b"x", float("inf"))
            waiting = [asyncio.create_task(c.reserve(float("inf"))) for _ in range(2)]
            (await waiting[0]).ack()
            waiting[1].cancel()

    with one_by_one(q):
        uvloop.run(main())


def test_importing_mpqueue_does_not_import_asyncio(run_python: RunPython) -> None:
    loaded = run_python("import mpqueue, sys; mpqueue.Queue; print('asyncio' in sys.modules)")
    assert loaded == "False\n"
    run_python("from mpqueue.aio import AsyncQueue, AsyncConsumer")
    run_python("import mpqueue.aio; mpqueue.aio.AsyncQueue")
