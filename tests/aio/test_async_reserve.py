"""Goal: tasks that reserve get each item once, in turn; a cancelled one takes nothing with it.

Method: real loops (asyncio.run) over real queues; producers are other processes where that
matters. Random choices come from a printed seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncConsumer, AsyncQueue

SEED = int(os.environ.get("MPQ_SEED", str(random.SystemRandom().randrange(1 << 32))))


def test_items_come_in_order_and_waiters_in_turn(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(durability="none")) as q, q.consumer() as c:
            waiting = [asyncio.create_task(c.reserve()) for _ in range(50)]
            await asyncio.sleep(0)
            for number in range(60):
                q.put_nowait(b"%d" % number)
            items = await asyncio.gather(*waiting)
            items += [await c.reserve(), *await c.reserve_many(9)]
            assert [item.body for item in items] == [b"%d" % number for number in range(60)]
            assert await c.reserve(0) is None
            await c.ack_many(items)
            await q.put(b"last")
            item = await c.reserve(3600)
            await c.ack(item, durable=True)
            assert len(q.queue) == 0

    asyncio.run(main())


def test_timeouts(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            assert await c.reserve(0) is None
            assert await c.reserve(0.001) is None
            assert await c.reserve_many(3, timeout=0.001) == []
            for wrong in (-1, float("nan")):
                with pytest.raises(ValueError, match="timeout"):
                    await c.reserve(wrong)
            first = asyncio.create_task(c.reserve(3600))
            second = asyncio.create_task(c.reserve_many(5, timeout=float("inf")))
            third = asyncio.create_task(c.reserve(0.001))
            assert await third is None, "its time is up, whoever stands before it"
            await q.put_many([b"a", b"b", b"c"])
            assert (await first).body == b"a"
            assert [item.body for item in await second] == [b"b", b"c"]
            assert not c._line

    asyncio.run(main())


def test_what_was_taken_for_a_cancelled_task_was_never_handed_out(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(durability="none")) as q, q.consumer() as c:
            one = asyncio.create_task(c.reserve())
            many = asyncio.create_task(c.reserve_many(2))
            last = asyncio.create_task(c.reserve())
            await asyncio.sleep(0)
            q.queue.put_many([b"a", b"b", b"c"])
            c._hand_out()  # as the loop does: all have theirs, and none has run yet
            assert q.queue.stats().reserved_items == 3
            q.put_nowait(b"d")
            one.cancel()
            many.cancel()
            item = await last
            assert (item.body, item.attempts) == (b"a", 1), "the lowest one is ready again"
            item.ack()
            assert one.cancelled()
            assert many.cancelled()
            for body in (b"b", b"c", b"d"):
                item = await c.reserve()
                assert (item.body, item.attempts) == (body, 1)
                item.nack()
                item = await c.reserve()
                assert (item.body, item.attempts) == (body, 2)
                item.ack()

    asyncio.run(main())


def test_a_loss_that_a_cancelled_task_was_to_hear_of_is_told_to_another(
    open_queue: OpenQueue,
) -> None:
    async def main() -> None:
        q = open_queue(durability="none")
        q.put(b"broken" * 20)
        segment = next(Path(q.path).glob("segment-*"))
        raw = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(raw.index(b"brokenbroken"))
            file.write(b"B")
        for others in (0, 1):
            async with AsyncQueue(open_queue()) as other, other.consumer() as c:
                tasks = []
                for _ in range(1 + others):
                    future = asyncio.get_running_loop().create_future()
                    c._line[future] = lambda: None
                    tasks.append(future)
                tasks[0].set_exception(mpqueue.Corrupt("one loss"))
                c._take_back(tasks[0])
                c._line.clear()
                if others:
                    assert isinstance(tasks[1].exception(), mpqueue.Corrupt)
                else:
                    with pytest.raises(mpqueue.Corrupt, match="one loss"):
                        await c.reserve()
                if not others:
                    with pytest.raises(mpqueue.Corrupt, match="damage"):
                        await c.reserve()
                assert await c.reserve(0) is None

    asyncio.run(main())


def test_a_storm_of_cancellations_loses_and_charges_nothing(open_queue: OpenQueue) -> None:
    print(f"MPQ_SEED={SEED}")
    rng = random.Random(SEED)

    async def main() -> None:
        async with AsyncQueue(open_queue(durability="none")) as q, q.consumer() as c:
            got: Counter[bytes] = Counter()
            total = 3000

            async def worker() -> None:
                while True:
                    item = await c.reserve(rng.choice((None, None, 0.0001, 0.001)))
                    if item is not None:
                        got[item.body] += 1
                        assert item.attempts == 1
                        item.ack()

            workers = [asyncio.create_task(worker()) for _ in range(40)]
            put = cancelled = 0
            while put < total:
                await asyncio.sleep(0)
                burst = rng.randrange(8)
                for _ in range(min(burst, total - put)):
                    q.put_nowait(b"%d" % put)
                    put += 1
                if rng.random() < 0.3:
                    c._hand_out()
                for index in rng.sample(range(40), rng.randrange(4)):
                    cancelled += workers[index].cancel()
                    workers[index] = asyncio.create_task(worker())
            while got.total() < total:
                await asyncio.sleep(0)
            for task in workers:
                task.cancel()
            results = await asyncio.gather(*workers, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
            assert set(got.values()) == {1}
            assert cancelled > 100
            assert (len(q.queue), q.queue.stats().reserved_items) == (0, 0)
            assert not c._line

    asyncio.run(main())


_PRODUCER = """
import sys
import mpqueue
q = mpqueue.Queue(sys.argv[1])
for number in range(int(sys.argv[3])):
    q.put(b"%s:%d" % (sys.argv[2].encode(), number))
"""


def test_a_thousand_tasks_share_what_other_processes_put(open_queue: OpenQueue) -> None:
    names, each = ("p", "q", "r"), 3000
    q = open_queue(durability="none")
    command = [sys.executable, "-P", "-c", _PRODUCER, q.path]
    producers = [subprocess.Popen([*command, name, str(each)]) for name in names]

    async def main() -> None:
        got: list[bytes] = []
        in_hand = most = 0

        async def worker(c: AsyncConsumer) -> None:
            nonlocal in_hand, most
            async for item in c:
                in_hand += 1
                most = max(most, in_hand)
                await asyncio.sleep(0)
                in_hand -= 1
                got.append(item.body)

        async with AsyncQueue(open_queue()) as aq, aq.consumer() as c:
            async with asyncio.TaskGroup() as group:
                for _ in range(1000):
                    group.create_task(worker(c))
                for producer in producers:
                    assert await asyncio.to_thread(producer.wait) == 0
                await aq.seal()
            assert len(aq.queue) == 0
        print(f"{most} items in hand at once")
        assert sorted(got) == sorted(
            b"%s:%d" % (name.encode(), number) for name in names for number in range(each)
        )

    asyncio.run(main())


_ONE_BY_ONE = """
import random, sys
import mpqueue
path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
q = mpqueue.Queue(path)
for number in range(rounds):
    for _ in range(rng.choice((0, 0, 10, 100, 1000, 3000))):
        pass
    q.put(b"%d" % number)
    assert sys.stdin.buffer.read(1) == b"."
"""


@pytest.mark.parametrize("durability", ["none", "group"])
def test_no_wakeup_is_lost(open_queue: OpenQueue, durability: str) -> None:
    """One item at a time, put at a random moment around the one at which the descriptor is armed
    again. A lost ring leaves both waiting for ever."""
    print(f"MPQ_SEED={SEED}")
    rounds = 5000 if durability == "none" else 1000
    q = open_queue(durability=durability)
    producer = subprocess.Popen(
        [sys.executable, "-P", "-c", _ONE_BY_ONE, q.path, str(SEED), str(rounds)],
        stdin=subprocess.PIPE,
    )
    assert producer.stdin is not None
    answer = producer.stdin.fileno()
    rng = random.Random(SEED + 1)

    async def main() -> None:
        async with AsyncQueue(open_queue()) as aq, aq.consumer() as c:
            for number in range(rounds):
                item = await c.reserve()
                assert item.body == b"%d" % number
                item.ack()
                os.write(answer, b".")
                for _ in range(rng.choice((0, 0, 10, 100, 1000, 3000))):
                    pass

    asyncio.run(main())
    producer.stdin.close()
    assert producer.wait() == 0


def test_waiting_starts_one_thread_once(open_queue: OpenQueue) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    async def main() -> None:
        async with AsyncQueue(open_queue(durability="none")) as q, q.consumer() as c:
            task = asyncio.create_task(c.reserve())
            await asyncio.sleep(0)
            before = threads()
            for _ in range(1000):
                q.put_nowait(b"")
                item = await task
                task = asyncio.create_task(c.reserve())
                await asyncio.sleep(0)
                item.nack()
                (await task).ack()
                task = asyncio.create_task(c.reserve())
                await asyncio.sleep(0)
                assert threads() == before
            task.cancel()

    asyncio.run(main())


def test_tasks_that_wait_cost_no_cpu(open_queue: OpenQueue) -> None:
    code = "import time, mpqueue, sys; q = mpqueue.Queue(sys.argv[1]); time.sleep(3); q.seal()"

    async def main() -> None:
        q = open_queue(durability="none")
        async with AsyncQueue(open_queue()) as aq, aq.consumer() as c:
            tasks = [asyncio.create_task(c.reserve()) for _ in range(100)]
            await asyncio.sleep(0)
            with subprocess.Popen([sys.executable, "-P", "-c", code, q.path]) as other:
                cpu, began = time.process_time(), time.monotonic()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                share = (time.process_time() - cpu) / (time.monotonic() - began)
            print(f"{share:.3%} of a core")
            assert {type(result) for result in results} == {mpqueue.Sealed}
            assert share < 0.02
            assert other.returncode == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["consumer", "queue", "handle", "inner"])
def test_close_ends_waits(open_queue: OpenQueue, how: str) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue()) as q, q.consumer() as c:
            tasks = [asyncio.create_task(c.reserve(timeout)) for timeout in (None, 3600)]
            await asyncio.sleep(0)
            if how == "consumer":
                await c.close()
            elif how == "queue":
                await q.close()
            elif how == "handle":
                await asyncio.to_thread(q.queue.close)
            else:
                await asyncio.to_thread(c.consumer.close)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {mpqueue.Closed}
            assert c.closed
            with pytest.raises(mpqueue.Closed):
                await c.reserve()
            await c.close()

    asyncio.run(main())


def test_one_consumer_at_a_time(open_queue: OpenQueue) -> None:
    async def main() -> None:
        other = open_queue()
        async with AsyncQueue(open_queue()) as q:
            c = q.consumer()
            with pytest.raises(mpqueue.Closed, match="not open"):
                await c.reserve()
            async with c:
                with pytest.raises(mpqueue.ConsumerBusy):
                    other.consumer()
                for wait in (None, 0.01):
                    with pytest.raises(mpqueue.ConsumerBusy):
                        await q.consumer(wait).__aenter__()
                async with AsyncQueue(other) as standby:
                    entering = asyncio.create_task(standby.consumer(3600).__aenter__())
                    cancelled = asyncio.create_task(standby.consumer(3600).__aenter__())
                    await asyncio.sleep(0)
                    cancelled.cancel()
                    await c.close()
                    second = await entering
                    with pytest.raises(mpqueue.Closed, match="once"):
                        await second.__aenter__()
                    await standby.put(b"x")
                    item = await second.reserve()
                    assert item.body == b"x"
                    await standby.close()
            async with q.consumer() as again:
                item = await again.reserve()
                assert item.attempts == 2
                item.ack()

    asyncio.run(main())


def test_a_consumer_belongs_to_one_loop(open_queue: OpenQueue) -> None:
    q = AsyncQueue(open_queue())
    kept: list[AsyncConsumer] = []

    async def first() -> None:
        kept.append(await q.consumer().__aenter__())
        assert await kept[0].reserve(0.001) is None

    async def second() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await kept[0].reserve()
        await q.close()

    asyncio.run(first())
    asyncio.run(second())


def test_takes_without_a_wait_let_other_tasks_run(open_queue: OpenQueue) -> None:
    async def main() -> None:
        async with AsyncQueue(open_queue(durability="none")) as q, q.consumer() as c:
            q.queue.put_many([b""] * 4000)

            async def drain() -> None:
                while (item := await c.reserve(0)) is not None:
                    item.ack()

            task, turns = asyncio.create_task(drain()), 0
            while not task.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns > 20
            assert len(q.queue) == 0

    asyncio.run(main())


def test_ctrl_c_ends_a_reserve(open_queue: OpenQueue) -> None:
    code = """
    import asyncio, signal, sys
    import mpqueue
    from mpqueue.aio import AsyncQueue

    async def main():
        async with AsyncQueue(mpqueue.Queue(sys.argv[1])) as q, q.consumer() as c:
            task = asyncio.create_task(c.reserve())
            await asyncio.sleep(0)
            print("waits", flush=True)
            await task

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    q = open_queue()
    command = [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(code), q.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "waits\n"
        victim.send_signal(signal.SIGINT)
        assert victim.stdout.read() == "interrupted\n"
    assert victim.returncode == 0
    q.put(b"x")
    with q.consumer() as c, c.reserve() as item:
        assert item.attempts == 1
