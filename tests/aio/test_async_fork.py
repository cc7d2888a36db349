"""Goal: an AsyncQueue belongs to one process; a forked child takes nothing from its parent.

Method: scripts that fork inside a running loop, whose selector both processes share. The parent
waits without a bound afterwards: a descriptor that the child took out of the selector hangs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import RunPython

_PRELUDE = """
import asyncio, gc, os, sys, warnings
import mpqueue
from mpqueue.aio import AsyncQueue
warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads

async def refused(awaitable):
    try:
        await awaitable
    except mpqueue.Closed as error:
        assert "parent" in str(error), error
    else:
        raise AssertionError("not refused")
"""

_CHILDREN = {
    "close": "await c.close()",
    "close twice": "await c.close(); await c.close(); await q.close(); await q.close()",
    "queue": "await q.close()",
    "with": "await c.__aexit__(None, None, None); await q.__aexit__(None, None, None)",
    "callback": "c._line.clear(); c._hand_out()",
    "reserve": "await refused(c.reserve()); await refused(c.reserve_many(3, timeout=0))",
    "reserve, nobody in line": "c._line.clear(); await refused(c.reserve())",
    "watch": "await refused(c._stand_in_line(lambda: None, None))",
    "iterate": "await refused(anext(aiter(c)))",
    "drop": "c = None; gc.collect()",
}


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("act", _CHILDREN)
def test_the_parent_goes_on(run_python: RunPython, spool: Path, act: str, watched: bool) -> None:
    script = f"""
async def main():
    async with AsyncQueue(mpqueue.Queue(sys.argv[1])) as q, q.consumer() as c:
        task = asyncio.create_task(c.reserve())
        if {watched}:
            while not c._watched:
                await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            try:
                {_CHILDREN[act]}
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        await asyncio.sleep(0)
        await q.put(b"x")
        item = await task
        assert item.attempts == 1
        item.ack()
        assert not c.closed
        assert q.queue.stats().consumer_pid == os.getpid()
asyncio.run(main())
"""
    run_python(_PRELUDE + script, spool)


def test_every_call_of_a_child_is_refused_before_it_does_anything(
    run_python: RunPython, spool: Path
) -> None:
    script = """
async def main():
    handle = mpqueue.Queue(sys.argv[1], durability="group")
    async with AsyncQueue(handle) as q, q.consumer() as c:
        await q.put_many([b"a", b"b"])
        a, b = await c.reserve_many(2)
        pid = os.fork()
        if pid == 0:
            try:
                for call in (
                    q.put(b"lost"), q.put_many([b"lost"]), q.flush(), q.seal(), q.__aenter__(),
                    c.ack(a), c.ack(a, True), c.ack_many([a, b]), c.ack_many([]), c.__aenter__(),
                ):
                    await refused(call)
                for call in (lambda: q.put_nowait(b"lost"), q.consumer, lambda: c.consumer):
                    try:
                        call()
                    except mpqueue.Closed as error:
                        assert "parent" in str(error)
                    else:
                        raise AssertionError("not refused")
                assert c.closed and " closed" in repr(c)
                await q.close()
                assert not handle.closed
                assert len(handle) == 2
                handle.put(b"of the handle")
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        c_item = await c.reserve()
        print([item.body for item in (a, b, c_item)])
        await c.ack_many([a, b, c_item])
        assert len(handle) == 0
asyncio.run(main())
"""
    assert run_python(_PRELUDE + script, spool) == "[b'a', b'b', b'of the handle']\n"


def test_what_was_handed_to_a_task_stays_with_the_parent(
    run_python: RunPython, spool: Path
) -> None:
    """The child cancels its copy of a task that an item is on its way to."""
    script = """
async def main():
    async with AsyncQueue(mpqueue.Queue(sys.argv[1])) as q, q.consumer() as c:
        task = asyncio.create_task(c.reserve())
        while not c._line:
            await asyncio.sleep(0)
        future = next(iter(c._line))
        q.queue.put(b"x")
        c._hand_out()
        pid = os.fork()
        if pid == 0:
            c._take_back(future)
            os._exit(future.result().settled)
        assert os.waitpid(pid, 0)[1] == 0
        (await task).ack()
asyncio.run(main())
"""
    run_python(_PRELUDE + script, spool)


@pytest.mark.parametrize("leave", ["sys.exit(0)", "raise Oops"])
def test_a_child_that_leaves_async_with_ends_as_it_wanted(
    run_python: RunPython, spool: Path, leave: str
) -> None:
    script = f"""
class Oops(Exception):
    pass

async def main():
    async with AsyncQueue(mpqueue.Queue(sys.argv[1])) as q, q.consumer() as c:
        pid = os.fork()
        if pid == 0:
            {leave}
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)
        os._exit(0)  # the child closed its copy of the loop, which harms this one
try:
    asyncio.run(main())
except Oops:
    sys.exit(7)
"""
    expected = "0\n" if leave == "sys.exit(0)" else "7\n"
    assert run_python(_PRELUDE + script, spool) == expected


def test_a_child_wraps_the_handle_anew(run_python: RunPython, spool: Path) -> None:
    script = """
handle = mpqueue.Queue(sys.argv[1], durability="group")
q = AsyncQueue(handle)
asyncio.run(q.put(b"of the parent"))
pid = os.fork()
if pid == 0:
    asyncio.run(refused(q.put(b"lost")))
    asyncio.run(AsyncQueue(handle).put(b"of the child"))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
async def rest():
    async with q, q.consumer() as c:
        print([item.body for item in await c.reserve_many(9)])
asyncio.run(rest())
"""
    assert run_python(_PRELUDE + script, spool) == "[b'of the parent', b'of the child']\n"
