"""Goal: a handle works in every process that comes to have it, however it was started.

Method: each way to start processes, through real interpreters; every item must arrive, in order
within its producer, and the counters must be exact.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import Script
from work import CONTEXTS, METHODS


@pytest.fixture
def run_script(tmp_path: Path, spool: Path) -> Script:
    return Script(tmp_path, spool)


@pytest.mark.parametrize("durability", ["none", "group"])
@pytest.mark.parametrize("method", METHODS)
def test_children_put_through_the_handle_of_their_parent(
    run_script: Script, method: str, durability: str
) -> None:
    run_script(
        """
        if __name__ == "__main__":
            method, durability = sys.argv[2:]
            with Queue(path, segment_size=65536, durability=durability) as q:
                work.run(method, 4, work.put_numbers, q, 200)
                work.check_numbers(q, 4, 200)
        """,
        method,
        durability,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["os", "c", "fork", "forkserver"])
def test_preloaded_handle_serves_eight_workers(run_script: Script, method: str) -> None:
    """As under gunicorn --preload: opened at import in the parent, used after the fork."""
    run_script(
        """
        if __name__ == "__main__":
            import multiprocessing
            multiprocessing.set_forkserver_preload(["preload"])
            Queue(path, segment_size=1 << 20, durability="interval").close()
            import preload
            work.run(sys.argv[2], 8, preload.work, 1000)
            q = preload.queue
            seen = [0] * 9
            with q.consumer() as c:
                for item in c.drain():
                    index, number = map(int, item.body.split(b":"))
                    if index:
                        assert number == seen[index]
                    seen[index] += 1
            puts = sum(seen)
            assert seen[1:] == [1000] * 8, seen
            assert seen[0] == (2 if sys.argv[2] == "forkserver" else 1)
            stats = q.stats()
            assert (stats.items_enqueued, stats.items_acked, stats.claim_gaps) == (puts, puts, 0)
            assert (stats.depth, stats.items_redelivered) == (0, 0)
            q.close()
        """,
        method,
    )


@pytest.mark.parametrize("method", CONTEXTS)
def test_pools_carry_handles_and_results(run_script: Script, method: str) -> None:
    run_script(
        """
        if __name__ == "__main__":
            import functools, multiprocessing
            method = sys.argv[2]
            context = multiprocessing.get_context(method)
            bodies = [b"%d" % n for n in range(40)]
            with Queue(path, segment_size=65536) as q:
                put = functools.partial(work.put_one, q)
                with context.Pool(2) as pool:
                    seqs = pool.map(put, bodies)
                with work.executor(method) as pool:
                    seqs += pool.map(put, bodies)
                with context.Pool(2, work.open_here, (path,)) as pool:
                    seqs += pool.map(work.put_opened, bodies)
                with work.executor(method, initializer=work.open_here, initargs=(path,)) as pool:
                    seqs += pool.map(work.put_opened, bodies)
                assert sorted(seqs) == list(range(1, 161))
                with q.consumer() as c:
                    taken = {item.seq: item.body for item in c.drain()}
                assert taken == dict(zip(seqs, bodies * 4))
        """,
        method,
    )


@pytest.mark.parametrize("method", CONTEXTS)
def test_exceptions_cross_pools_with_their_attributes(run_script: Script, method: str) -> None:
    run_script(
        """
        if __name__ == "__main__":
            import multiprocessing, queue
            method = sys.argv[2]
            with Queue(path, segment_size=65536, capacity=1, max_item=100) as q, q.consumer():
                q.put(b"x")
                calls = (
                    (work.put_one, (q, b"y"), mpqueue.Full, "reason", "capacity"),
                    (work.put_one, (q, b"y" * 101), mpqueue.TooLarge, "accepted", 0),
                    (q.put_many, ([b"", b""], ), mpqueue.TooLarge, "accepted", 0),
                    (q.consumer, (), mpqueue.ConsumerBusy, "pid", os.getpid()),
                    (Queue, (path + "-not",), mpqueue.NotAQueue, "accepted", 0),
                )
                with multiprocessing.get_context(method).Pool(1) as pool:
                    for call, arguments, kind, name, value in calls:
                        keywords = {"create": False} if call is Queue else {}
                        try:
                            pool.apply(call, arguments, keywords)
                        except kind as error:
                            assert type(error) is kind
                            assert getattr(error, name) == value
                            assert path in str(error), error
                        else:
                            raise AssertionError(kind)
                with work.executor(method) as pool:
                    try:
                        pool.submit(work.put_one, q, b"y").result()
                    except queue.Full as error:
                        assert error.reason == "capacity"
        """,
        method,
    )


def test_consumers_say_how_to_travel(run_script: Script) -> None:
    run_script(
        """
        if __name__ == "__main__":
            import multiprocessing
            with Queue(path, segment_size=65536) as q, q.consumer() as c:
                try:
                    multiprocessing.get_context("spawn").Process(target=print, args=(c,)).start()
                except TypeError as error:
                    assert "Pickle the Queue" in str(error)
                else:
                    raise AssertionError
        """
    )


def test_each_generation_of_a_family_joins_anew(run_script: Script) -> None:
    run_script(
        """
        def descend(depth):
            incarnation = q.incarnation
            q.put(b"%d" % depth)
            seen.append(q.incarnation)
            assert depth == 0 or q.incarnation != incarnation
            if depth < 5:
                pid = os.fork()
                if pid == 0:
                    descend(depth + 1)
                assert os.waitpid(pid, 0)[1] == 0
            if depth:
                assert len(set(seen)) == len(seen) == depth + 1
                os._exit(0)
        seen = []
        with Queue(path, segment_size=65536) as q:
            descend(0)
            with q.consumer() as c:
                assert [int(item.body) for item in c.drain()] == list(range(6))
            assert q.stats().members_alive == 1
        """
    )


def test_exec_leaves_the_queue(run_script: Script) -> None:
    """The new program is another member; what the old one held is ready again."""
    run_script(
        """
        if len(sys.argv) == 2:
            q = Queue(path, segment_size=65536)
            q.put(b"x")
            c = q.consumer()
            item = c.reserve()
            os.execv(sys.executable, [sys.executable, "-P", __file__, path, str(os.getpid())])
        assert int(sys.argv[2]) == os.getpid()
        with Queue(path, create=False) as q, q.consumer() as c:
            with c.reserve() as item:
                assert (item.body, item.attempts) == (b"x", 2)
            assert q.stats().members_alive == 1
        mpqueue.destroy(path)
        """
    )
