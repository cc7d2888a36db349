"""Goal: a fork at any moment leaves child and parent with handles that work.

Method: forks while other threads of the parent are blocked or busy in every call, while it holds
the consumer role and items, and inside a signal handler that runs in the middle of a call. Children
exit through the interpreter's own end, so that what they inherited is torn down there too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import Script


@pytest.fixture
def run_script(tmp_path: Path, spool: Path) -> Script:
    return Script(tmp_path, spool)


def test_fork_under_blocked_threads(run_script: Script) -> None:
    run_script(
        """
        q = Queue(path, segment_size=65536, capacity=2)
        q.put(b"held")
        q.put(b"held too")
        c = q.consumer()
        held = c.reserve_many(2)
        got, entered = [], threading.Barrier(4)
        def put():
            entered.wait()
            q.put(b"from a thread")
        def reserve():
            entered.wait()
            with c.reserve() as item:
                got.append(item.body)
        threads = [threading.Thread(target=call) for call in (put, put, reserve)]
        for thread in threads:
            thread.start()
        entered.wait()
        while q.stats().waits < 3:  # all of them sleep
            pass
        for number in range(6):
            pid = os.fork()
            if pid == 0:
                if number % 3:  # the others tear down a handle that they never used
                    assert q.put(b"x", block=False, on_full="drop") is None
                    assert (len(q), q.stats().reserved_items) == (2, 2)
                    if number % 3 == 1:
                        q.close()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        c.ack_many(held)
        threads[2].join()
        with c.reserve() as item:
            got.append(item.body)
        for thread in threads:
            thread.join()
        assert got == [b"from a thread"] * 2
        stats = q.stats()
        assert (stats.items_enqueued, stats.items_acked, stats.items_dropped) == (4, 4, 4)
        q.close()
        """
    )


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["none", "group", "sync"])
def test_fork_under_busy_threads(run_script: Script, durability: str) -> None:
    """Locks of the handle are taken by other threads at the instant of the fork."""
    run_script(
        """
        import gc
        q = Queue(path, segment_size=1 << 20, max_segments=100, durability=sys.argv[2])
        c = q.consumer()
        stop = threading.Event()
        def put():  # a large batch is claimed and copied without the interpreter lock
            while not stop.is_set():
                q.put(b"x" * 100_000)
                q.put_many([b"y"] * 4000)
        def take():
            while not stop.is_set() or any(thread.is_alive() for thread in threads[:2]):
                c.ack_many(c.reserve_many(5000, timeout=0.001))
        def flush():
            while not stop.is_set():
                q.flush()
        threads = [threading.Thread(target=call) for call in (put, put, take, flush)]
        for thread in threads:
            thread.start()
        def child(index):
            global q, c
            if index:
                q.put(b"child")
                q.close()
            else:
                del q, c  # unused, closed by the garbage collector
                gc.collect()
        try:
            for number in range(100):
                work.run("os", 2, child)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for item in c.drain():
            pass
        stats = q.stats()
        assert (stats.depth, stats.claim_gaps, stats.items_redelivered) == (0, 0, 0)
        assert stats.items_enqueued == stats.items_acked
        q.close()
        """,
        durability,
    )


def test_first_calls_of_a_child_in_several_threads(run_script: Script) -> None:
    run_script(
        """
        q = Queue(path, segment_size=65536)
        q.put(b"parent")
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                entered = threading.Barrier(8)
                seqs = []
                def put():
                    entered.wait()
                    seqs.append(q.put(b"child"))
                threads = [threading.Thread(target=put) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                alive = q.stats().members_alive
                sys.exit(0 if len(set(seqs)) == 8 and alive == 2 else 1)
            assert os.waitpid(pid, 0)[1] == 0
        with q.consumer() as c:
            assert [item.body for item in c.drain()] == [b"parent"] + [b"child"] * 80
        q.close()
        """
    )


def test_consumer_and_its_items_stay_with_the_parent(run_script: Script) -> None:
    """Neither the child's life nor its end lets go of them, nor says a word about them."""
    run_script(
        """
        import gc
        q = Queue(path, segment_size=65536)
        q.put_many([b"a", b"b", b"c"])
        c = q.consumer()
        held = c.reserve_many(2)
        for act in ("nothing", "use", "close", "drop", "consume"):
            pid = os.fork()
            if pid == 0:
                if act in ("use", "close"):
                    for call in (held[0].ack, held[1].nack, c.reserve, c.rewind, c.checkpoint):
                        try:
                            call()
                        except mpqueue.Closed as error:
                            assert "parent" in str(error)
                        else:
                            os._exit(1)
                if act == "close":
                    c.close()
                    q.close()
                    c.close()
                if act == "drop":
                    del held, c
                    gc.collect()
                if act == "consume":
                    try:
                        q.consumer()
                    except mpqueue.ConsumerBusy as busy:
                        assert busy.pid == os.getppid()
                    else:
                        os._exit(2)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0, act
            stats = q.stats()
            assert (stats.reserved_items, stats.consumer_pid) == (2, os.getpid()), act
        with c.reserve() as item:
            assert (item.body, item.attempts) == (b"c", 1)
        c.ack_many(held)
        assert q.stats().items_acked == 3
        q.close()
        """
    )


@pytest.mark.parametrize("use", ["used there", "not used there"])
@pytest.mark.parametrize("call", ["put", "put_many", "reserve", "standby", "join"])
def test_fork_in_a_signal_handler_in_the_middle_of_a_call(
    run_script: Script, call: str, use: str
) -> None:
    """The child goes on with the same call, as a process of its own, and can close.

    A child that had used the handle before it went on waited for ever to close it; one that stood
    by got a consumer that was of use to nobody, and kept the role.
    """
    run_script(
        """
        q = Queue(path, segment_size=65536, capacity=1)
        q.put(b"first")
        other = Queue(path)
        c = other.consumer()
        item = c.reserve()
        standby = Queue(path)
        children = []
        def fork(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            read, write = os.pipe()
            pid = os.fork()
            children.append(pid)
            if pid == 0:
                os.read(read, 1)
                if sys.argv[3] == "used there":
                    assert len(q) + len(other) + len(standby) >= 0
                return
            item.ack()  # room for one of the two
            os.write(write, b"1")
        signal.signal(signal.SIGALRM, fork)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        name, before = sys.argv[2], q.incarnation
        try:
            if name == "put":
                q.put(b"second", timeout=0.2)
            elif name == "put_many":
                q.put_many([b"second"], timeout=0.2)
            elif name == "reserve":
                c.reserve(timeout=0.2)
            elif name == "standby":
                standby.consumer(wait=0.2)
            else:
                assert q.join(timeout=3600)
        except (mpqueue.Full, mpqueue.Closed, mpqueue.ConsumerBusy):
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        if children[0] == 0:
            if sys.argv[3] != "used there":
                assert (q.incarnation == before) == (name not in ("put", "put_many", "join"))
            assert q.stats().fault is False
            for handle in (q, other, standby):
                handle.close()
            sys.exit(0)
        assert os.waitpid(children[0], 0)[1] == 0
        stats = q.stats()
        assert (stats.fault, stats.claim_gaps) == (False, 0)
        puts = name in ("put", "put_many")
        assert stats.items_enqueued == (2 if puts else 1)
        while stats.depth:
            with c.reserve() as item:
                assert item.body == b"second"
            stats = q.stats()
        assert stats.members_alive == 3
        for handle in (q, other, standby):
            handle.close()
        """,
        call,
        use,
    )


def test_a_child_of_a_handler_that_stands_by_can_consume(run_script: Script) -> None:
    """Whichever of the two gets the role first, both get it, one after the other."""
    run_script(
        """
        q, standby = Queue(path, segment_size=65536), Queue(path)
        q.put_many([b"a", b"b"])
        holder = q.consumer()
        children = []
        def fork(*_):
            children.append(os.fork())
            if children[0]:
                holder.close()
        signal.signal(signal.SIGALRM, fork)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with standby.consumer(wait=60) as consumer, consumer.reserve(timeout=0) as item:
            assert item.body in (b"a", b"b")
        if children[0] == 0:
            standby.close()
            sys.exit(0)
        assert os.waitpid(children[0], 0)[1] == 0
        with standby.consumer() as consumer:
            assert consumer.reserve(timeout=0) is None
        q.close()
        standby.close()
        """
    )


@pytest.mark.parametrize("call", ["len(q)", "q.stats()", "q.members()", "repr(q)"])
def test_a_look_in_a_child_can_be_interrupted(run_script: Script, call: str) -> None:
    """The first one joins, and waits while somebody opens the queue: here, for a plain lock."""
    run_script(
        """
        import fcntl, struct
        q = Queue(path, segment_size=65536)
        meta = os.open(os.path.join(path, "meta"), os.O_RDWR)
        gate = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 61, 1, 0)
        fcntl.fcntl(meta, fcntl.F_OFD_SETLK, gate)
        child = os.fork()
        if child == 0:
            os.close(meta)
            class Enough(Exception):
                pass
            def enough(*_):
                raise Enough
            signal.signal(signal.SIGALRM, enough)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                eval(sys.argv[2])
            except Enough:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        os.close(meta)
        q.close()
        """,
        call,
    )
