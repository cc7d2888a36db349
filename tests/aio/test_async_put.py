"""Goal: an awaited put keeps the queue's promises and never holds up the loop.

Method: real queues; where a flush or a full queue is meant to last, it lasts until the loop itself
ends it, so a loop that is held up hangs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncQueue, threads


class GatedFlush(mpqueue.Queue):
    """Flushes wait for `gate`."""

    def __init__(self, *args: object, **options: object) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        super().__init__(*args, **options)

    def _await_flush(self, ticket: int, /) -> None:
        self.entered.set()
        self.gate.wait()
        super()._await_flush(ticket)


@pytest.fixture
def gated(spool: Path) -> Iterator[Callable[..., GatedFlush]]:
    """Makes one; at the end its threads go on, whatever failed."""
    made: list[GatedFlush] = []

    def maker(kind: type[GatedFlush] = GatedFlush, **options: object) -> GatedFlush:
        made.append(kind(spool, **options))
        return made[-1]

    yield maker
    for handle in made:
        handle.gate.set()
        handle.close()


@pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])
def test_puts_go_in_in_the_order_of_their_calls(open_queue: OpenQueue, durability: str) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(durability=durability, capacity=50)) as q:
            bodies = [b"%d" % number for number in range(200)]
            bodies[17] += bytes(100_000)  # copied in a thread
            puts = [asyncio.create_task(q.put(body)) for body in bodies]
            async with q.consumer() as c:
                seen = []
                async for item in c:
                    seen.append(item.body)
                    if len(seen) == 200:
                        item.ack()
                        break
            seqs = await asyncio.gather(*puts)
            assert seqs == sorted(seqs)
            assert seen == bodies
            stats = q.queue.stats()
            assert stats.depth == 0
            assert durability in ("none", "interval") or stats.unsynced_items == 0

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["group", "sync"])
def test_a_flush_does_not_hold_up_the_loop(
    gated: Callable[..., GatedFlush], durability: str
) -> None:
    async def main() -> None:
        handle = gated(durability=durability)
        async with AsyncQueue(handle) as q:
            puts = [asyncio.create_task(q.put(b"%d" % number)) for number in range(3)]
            while not handle.entered.is_set() or len(handle) < 3:
                await asyncio.sleep(0)  # the loop runs meanwhile
            puts[1].cancel()
            await asyncio.wait([puts[1]])
            assert puts[1].cancelled()
            assert not puts[0].done()
            handle.gate.set()
            assert (await puts[0], await puts[2]) == (1, 3)
            assert len(handle) == 3, "a put that waits for the disk only is in"

    asyncio.run(main())


def test_puts_share_flushes_and_threads(gated: Callable[..., GatedFlush]) -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/task"))
        handle = gated(durability="group")
        async with AsyncQueue(handle) as q:
            puts = [asyncio.create_task(q.put(b"x")) for _ in range(500)]
            while len(handle) < 500:
                await asyncio.sleep(0)
            handle.gate.set()
            assert len(set(await asyncio.gather(*puts))) == 500
            stats = handle.stats()
            assert stats.unsynced_items == 0
            assert stats.sync_duration_seconds.count < 10
            assert len(os.listdir("/proc/self/task")) <= before + threads.THREADS

    asyncio.run(main())


def test_a_failed_flush_is_told_to_every_put_that_waits_for_it(
    gated: Callable[..., GatedFlush],
) -> None:
    class Failing(GatedFlush):
        def _await_flush(self, ticket: int, /) -> None:
            super()._await_flush(ticket)
            raise mpqueue.FlushFailed(5, "the disk is gone")

    async def main() -> None:
        handle = gated(Failing, durability="group")
        async with AsyncQueue(handle) as q:
            handle.gate.set()
            results = await asyncio.gather(*(q.put(b"x") for _ in range(9)), return_exceptions=True)
            assert {type(result) for result in results} == {mpqueue.FlushFailed}

    asyncio.run(main())


@pytest.mark.parametrize("bound", ["capacity", "bytes"])
def test_full_when_the_time_is_up(open_queue: OpenQueue, bound: str) -> None:
    options = {"capacity": 2} if bound == "capacity" else {"max_bytes": 256}

    async def main() -> None:
        async with AsyncQueue(open_queue(**options)) as q:
            while True:
                try:
                    await q.put(b"x" * 48, 0)
                except mpqueue.Full:
                    break
            depth = len(q.queue)
            for timeout in (0, 0.001, 0.3):
                puts = [asyncio.create_task(q.put(b"x" * 48, timeout)) for _ in range(5)]
                results = await asyncio.gather(*puts, return_exceptions=True)
                assert {type(result) for result in results} == {mpqueue.Full}
                assert {result.reason for result in results} == {bound}
                with pytest.raises(mpqueue.Full):
                    await q.put_many([b"x" * 48] * 2, timeout=timeout)
            with pytest.raises(mpqueue.Full):
                q.put_nowait(b"x" * 48)
            for wrong in (-1, float("nan")):
                with pytest.raises(ValueError, match="timeout"):
                    await q.put(b"", wrong)
            assert len(q.queue) == depth

    asyncio.run(main())


def test_five_hundred_blocked_puts_park_no_thread_each(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(capacity=1, durability="none")) as q:
            first = await q.put(b"first")
            before = len(os.listdir("/proc/self/task"))
            puts = [asyncio.create_task(q.put(b"%d" % number)) for number in range(500)]
            await asyncio.sleep(0)
            while q.queue.stats().full < 1:  # one of them waits in the core
                await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/task")) <= before + 1
            for task in puts[1::2]:
                task.cancel()
            async with q.consumer() as c:
                bodies = []
                for _ in range(251):
                    item = await c.reserve()
                    bodies.append(item.body)
                    item.ack()
                assert bodies == [b"first", *(b"%d" % number for number in range(0, 500, 2))]
                assert await c.reserve(0.001) is None, "cancelled before it began: not in"
            assert await puts[0] == first + 1
            assert len(q.queue) == 0

    asyncio.run(main())


def test_a_put_that_is_cancelled_while_a_thread_waits_for_room(open_queue: OpenQueue) -> None:
    """Its outcome is unknown, but whole; and the next put has its turn."""

    async def main() -> None:
        async with AsyncQueue(open_queue(capacity=1)) as q, q.consumer() as c:
            await q.put(b"first")
            victim = asyncio.create_task(q.put(b"victim"))
            while not q.queue.stats().full:
                await asyncio.sleep(0)
            after = asyncio.create_task(q.put(b"after"))
            await asyncio.sleep(0)
            victim.cancel()
            bodies = []
            while b"after" not in bodies:
                item = await c.reserve()
                bodies.append(item.body)
                item.ack()
            await after
            assert victim.cancelled()
            assert bodies[0] == b"first"
            assert set(bodies) <= {b"first", b"victim", b"after"}
            assert len(bodies) == len(set(bodies))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["queue", "handle"])
def test_close_ends_puts_that_wait(open_queue: OpenQueue, how: str) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(capacity=1)) as q:
            await q.put(b"first")
            puts = [asyncio.create_task(q.put(b"x")) for _ in range(10)]
            while not q.queue.stats().full:
                await asyncio.sleep(0)
            if how == "queue":
                await q.close()
            else:
                await asyncio.to_thread(q.queue.close)
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert {type(result) for result in results} == {mpqueue.Closed}
            for call in (q.put(b"x"), q.put_many([b"x"]), q.flush(), q.seal()):
                with pytest.raises(mpqueue.Closed):
                    await call
            await q.close()

    asyncio.run(main())


def test_many_items_and_wrong_ones(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q:
            assert await q.put_many([b"a", bytearray(b"b")]) == range(1, 3)
            assert await q.put_many([]) == range(0)
            with pytest.raises(mpqueue.TooLarge):
                await q.put_many([b""] * 5000)
            for wrong in ("text", 5, None):
                with pytest.raises(TypeError):
                    await q.put(wrong)
                with pytest.raises(TypeError):
                    await q.put_many([b"", wrong])
            with pytest.raises(mpqueue.TooLarge):
                await q.put(bytes(100 << 20))
            assert await q.put(memoryview(b"c")) == 3
            await q.flush()
            await q.seal()
            with pytest.raises(mpqueue.Sealed):
                await q.put(b"d")
            await q.seal(undo=True)
            assert await q.put(b"d", headers={"k": "v"}) == 4

    asyncio.run(main())


def test_an_interpreter_ends_while_a_put_waits(spool: Path, run_python: object) -> None:
    script = """
    import asyncio, sys
    import mpqueue
    from mpqueue.aio import AsyncQueue
    q = AsyncQueue(mpqueue.Queue(sys.argv[1], capacity=1))
    async def main():
        await q.put(b"first")
        asyncio.create_task(q.put(b"second"))
        while not q.queue.stats().full:
            await asyncio.sleep(0)
    asyncio.run(main())
    """
    run_python(script, spool)
