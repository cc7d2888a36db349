"""Goal: the producer's side of the Python layer does what its docstrings say.

Method: one handle and its errors; signals by interval timers, other threads by events, forks and
crashes in processes of their own.
"""

from __future__ import annotations

import array
import gc
import os
import pickle
import signal
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import _native, semaphore


class Interrupt(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def interrupts() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Lets a timer signal call `action` again and again until the test ends."""
    old = signal.getsignal(signal.SIGALRM)

    def start(action: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: action())
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def _raise() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Interrupt


# ---- putting


def test_put_returns_growing_seqs_and_push_is_the_same(open_queue: OpenQueue) -> None:
    q = open_queue()
    first = q.put(b"a")
    assert [q.push(b"b"), q.put_nowait(b"c"), q.try_push(b"d")] == [first + i for i in (1, 2, 3)]
    assert len(q) == 4


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\0" * 100,
        bytearray(b"array"),
        memoryview(b"xviewx")[1:5],
        array.array("d", [1.5, 2.5]),
        bytes(range(256)) * 300,
    ],
    ids=["empty", "zeros", "bytearray", "slice", "doubles", "large"],
)
def test_bytes_like_payloads_round_trip(open_queue: OpenQueue, item: bytes) -> None:
    q = open_queue()
    q.put(item)
    q.put_many([item, item])
    with q.consumer() as c:
        items = c.reserve_many(3)
        assert [i.body for i in items] == [bytes(item)] * 3
        assert all(type(i.body) is bytes for i in items)
        c.ack_many(items)


@pytest.mark.parametrize("item", ["text", None, 7, ["a"]], ids=repr)
def test_other_payloads_are_refused_and_nothing_is_put(open_queue: OpenQueue, item: object) -> None:
    q = open_queue()
    text = f"an item is bytes or another bytes-like object, not {type(item).__name__}: encode it"
    with pytest.raises(TypeError, match=text):
        q.put(item)
    with pytest.raises(TypeError, match=text):
        q.put_many([b"whole", item])
    with pytest.raises(TypeError, match=text), q.batch() as b:
        b.append(b"whole")
        b.append(item)
    with pytest.raises(BufferError):
        q.put(memoryview(b"abcdef")[::2])
    assert len(q) == 0


def test_arguments_are_checked(open_queue: OpenQueue) -> None:
    q = open_queue()
    for timeout in (-1, -0.001, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            q.put(b"x", timeout=timeout)
    for call in (
        lambda: q.put(),
        lambda: q.put(b"x", True, 1, "drop"),
        lambda: q.put(b"x", item=b"y"),
        lambda: q.put(b"x", wrong=1),
        lambda: q.put(b"x", timeout="soon"),
        lambda: q.put_many(b"bytes"),
        lambda: q.put_many("text"),
        lambda: q.put_many(5),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="on_full"):
        q.put(b"x", on_full="explode")
    assert len(q) == 0


def test_headers_travel_with_the_item(open_queue: OpenQueue) -> None:
    q = open_queue()
    headers = {"traceparent": "00-ab", "\u00e9": "\u00fc" * 300, "": ""}
    q.put(b"with", headers=headers)
    q.put(b"none", headers={})
    q.put_nowait(b"nowait", headers={"k": "v"})
    with q.consumer() as c:
        items = c.reserve_many(3)
        assert [i.headers for i in items] == [headers, {}, {"k": "v"}]
        assert [i.body for i in items] == [b"with", b"none", b"nowait"]
        c.ack_many(items)
    with pytest.raises(TypeError):
        q.put(b"x", headers={"k": 1})
    with pytest.raises(ValueError, match="65,528"):
        q.put(b"x", headers={"k": "v" * 65536})
    assert len(q) == 0


def test_full_carries_its_reason_and_drop_is_counted(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=2, durability="none")
    q.put_many([b"a", b"b"])
    for call in (
        lambda: q.put_nowait(b"c"),
        lambda: q.put(b"c", timeout=0),
        lambda: q.put(b"c", timeout=0.01),
        lambda: q.put_many([b"c"], block=False),
    ):
        with pytest.raises(mpqueue.Full) as full:
            call()
        assert full.value.reason == "capacity"
        assert str(q.path) in str(full.value)
    assert q.put(b"c", timeout=0, on_full="drop") is None
    assert q.put_nowait(b"c", on_full="drop") is None
    assert q.put(b"c", on_full="drop") is None  # to drop is not to wait
    assert q.put(b"c", True, None, on_full="drop") is None
    assert q.stats().items_dropped == 4
    assert len(q) == 2


def test_put_waits_for_room(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=1, durability="none")
    q.put(b"first")
    done = threading.Event()

    def put() -> None:
        q.put(b"second")
        done.set()

    producer = threading.Thread(target=put)
    producer.start()
    with q.consumer() as c:
        for body in (b"first", b"second"):
            with c.reserve() as item:
                assert item.body == body
    producer.join()
    assert done.is_set()


def test_put_many_is_all_or_nothing(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=6000)
    assert list(q.put_many([])) == []
    seqs = q.put_many(b"%d" % number for number in range(100))
    assert len(seqs) == 100
    with pytest.raises(mpqueue.TooLarge):
        q.put_many([b"x"] * 5000)
    with pytest.raises(mpqueue.TooLarge):
        q.put_many([bytes(400_000), bytes(400_000)])
    assert len(q) == 100
    ranges = q.put_many([b"x"] * 5000, atomic=False)
    assert sum(map(len, ranges)) == 5000
    assert len(ranges) > 1
    assert ranges[0].start == seqs.stop
    with pytest.raises(mpqueue.Full) as full:
        q.put_many([b"y"] * 5000, atomic=False, block=False)
    assert full.value.accepted == len(q) - 5100
    assert f"; {full.value.accepted} of 5000 items went in before" in str(full.value)


def test_batch_commits_on_leaving_and_not_on_an_exception(open_queue: OpenQueue) -> None:
    q = open_queue()
    buffer = bytearray(b"one")
    with q.batch() as b:
        b.append(buffer)
        buffer[:] = b"two"
        b.append(buffer)
        assert len(b) == 2
        assert len(q) == 0
    assert b.seqs is not None
    assert len(b.seqs) == 2
    with pytest.raises(KeyError), q.batch() as b:
        b.append(b"never")
        raise KeyError
    assert b.seqs is None
    with q.consumer() as c:
        items = c.reserve_many(9)
        assert [i.body for i in items] == [b"one", b"two"]
        c.ack_many(items)


def test_a_batch_commits_as_often_as_asked(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=5)
    b = q.batch(timeout=0)
    assert b.commit() == range(0)
    b.append(b"1")
    b.append(b"2")
    first = b.commit()
    assert (len(first), b.seqs, len(b), len(q)) == (2, first, 0, 2)
    with b:
        b.append(b"3")
        second = b.commit()
        assert len(q) == 3, "at once, not on leaving"
    assert b.seqs == second, "nothing was left to put"
    with pytest.raises(KeyError), b:
        b.append(b"4")
        b.commit()
        b.append(b"never")
        raise KeyError
    assert (len(b), len(q)) == (0, 4)
    b.append(b"5")
    b.append(b"6")
    with pytest.raises(mpqueue.Full):
        b.commit()
    assert (len(b), len(q)) == (2, 4), "they wait for another try"
    with q.consumer() as c:
        assert [c.take().body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert len(b.commit()) == 2
        assert [c.take().body for _ in range(2)] == [b"5", b"6"]
    b.append(bytes(500_000))
    b.append(bytes(500_000))
    with pytest.raises(mpqueue.TooLarge):
        b.commit()
    assert len(b) == 0, "no other try can help"


def test_a_batch_that_is_collected_with_items_says_so(open_queue: OpenQueue) -> None:
    q = open_queue()
    b = q.batch()
    b.append(b"1")
    b.append(b"2")
    with pytest.warns(ResourceWarning, match=f"{q.path}: .*2 appended items were not put"):
        b = q.batch()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(KeyError), q.batch() as b:
            b.append(b"the exception said it")
            raise KeyError
        del b
        b = q.batch()
        b.append(b"put")
        b.commit()
        del b
        gc.collect()
    assert (said, len(q)) == ([], 1)


def test_encode_hook_makes_the_bytes(open_queue: OpenQueue) -> None:
    q = open_queue()
    q._encode = lambda text: text.encode()
    q.put("a")
    q.put_many(["b", "c"])
    with q.batch() as b:
        b.append("d")
    with pytest.raises(AttributeError):
        q.put(b"no encode method")
    q._encode = None
    with q.consumer() as c:
        items = c.reserve_many(9)
        assert b"".join(i.body for i in items) == b"abcd"
        c.ack_many(items)


# ---- the handle


def test_len_counts_unacked_and_truth_is_always_true(open_queue: OpenQueue) -> None:
    q = open_queue()
    assert bool(q)
    assert len(q) == 0
    q.put(b"x")
    with q.consumer() as c, c.reserve() as item:
        assert (len(q), q.qsize()) == (1, 0)
        assert item.attempts == 1
    assert len(q) == 0


@pytest.mark.parametrize("kind", [str, os.fsencode, Path], ids=["str", "bytes", "PathLike"])
def test_paths_of_any_kind_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"spool-\xff\xc3\xa9")
    with mpqueue.Queue(kind(name), segment_size=65536) as q:
        assert q.path == os.path.join(os.getcwd(), name)
        assert repr(q) == f"<mpqueue.Queue {q.path!r} depth=0>"
    with pytest.raises(ValueError, match="null"):
        mpqueue.Queue("a\0b")


def test_missing_queue_is_not_made_without_create(spool: Path) -> None:
    with pytest.raises(mpqueue.NotAQueue, match=str(spool)):
        mpqueue.Queue(spool, create=False)
    assert not spool.exists()


def test_options_are_kept_and_must_agree(open_queue: OpenQueue) -> None:
    made = open_queue(capacity=100, durability="interval", interval=0.25, mode=0o640)
    options = open_queue().options
    assert options == made.options
    assert (options.capacity, options.durability, options.interval) == (100, "interval", 0.25)
    assert (options.mode, options.max_bytes) == (0o640, None)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(AttributeError):
        options.capacity = 5
    for wrong in ({"capacity": 99}, {"segment_size": 65536}, {"durability": "sync"}):
        with pytest.raises(mpqueue.OptionsMismatch, match=next(iter(wrong))):
            open_queue(**wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size", 4096),
        ("segment_size", 65537),
        ("capacity", -1),
        ("capacity", 1.5),
        ("max_segments", 3),
        ("durability", "eventual"),
        ("interval", -0.1),
        ("interval", float("nan")),
        ("ack_window", 33),
    ],
)
def test_bad_options_are_refused_and_nothing_is_made(spool: Path, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        mpqueue.Queue(spool, **{name: value})
    assert not (spool / "meta").exists()


def test_set_options_reaches_every_handle(open_queue: OpenQueue) -> None:
    q, other = open_queue(capacity=1), open_queue()
    q.set_options(capacity=None, max_bytes=4096, retain=1.5)
    q.put_many([b"a", b"b"])
    assert (other.options.capacity, other.options.max_bytes) == (None, 4096)
    assert other.options.retain == 1.5
    for fixed in ({"segment_size": 1 << 20}, {"ack_window": 64}, {"max_members": 8}):
        with pytest.raises(ValueError, match=next(iter(fixed))):
            q.set_options(**fixed)
    with pytest.raises(TypeError, match="colour"):
        q.set_options(colour="red")


def test_closed_handle_raises_closed_and_keeps_its_numbers(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"a", b"b"])
    q.close()
    q.close()
    assert q.closed
    assert (len(q), q.stats().items_enqueued, q.options.max_segments) == (2, 2, 64)
    assert "closed" in repr(q)
    for call in (
        lambda: q.put(b"x"),
        lambda: q.put_nowait(b"x"),
        lambda: q.put_many([b"x"]),
        lambda: q.put(bytes(100_000)),
        q.flush,
        q.seal,
        q.consumer,
        q.checkpoint,
        q.get,
    ):
        with pytest.raises(mpqueue.Closed):
            call()


def test_close_ends_a_blocked_put_with_closed(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=1, durability="none")
    q.put(b"full")
    outcome: list[BaseException] = []

    def put() -> None:
        try:
            q.put(b"never")
        except mpqueue.Closed as error:
            outcome.append(error)

    producer = threading.Thread(target=put)
    producer.start()
    q.close()
    producer.join()
    assert len(outcome) == 1


def test_seal_is_shared_and_can_be_undone(open_queue: OpenQueue) -> None:
    q, other = open_queue(), open_queue()
    q.seal()
    with pytest.raises(mpqueue.Sealed):
        other.put(b"x")
    with pytest.raises(mpqueue.Sealed):
        other.put_many([b"x"])
    assert other.stats().sealed
    other.seal(undo=True)
    q.put(b"x")


def test_queue_pickles_to_path_and_options(open_queue: OpenQueue) -> None:
    q = open_queue(capacity=10)
    q.put(b"x")
    with pickle.loads(pickle.dumps(q)) as copy:
        assert type(copy) is mpqueue.Queue
        assert copy.incarnation != q.incarnation
        assert (copy.path, copy.uuid, len(copy)) == (q.path, q.uuid, 1)
        copy.put(b"y")
    assert len(q) == 2


def test_destroy_needs_the_queue_alone(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    name = q.gate_name
    with pytest.raises(mpqueue.QueueInUse) as busy:
        mpqueue.destroy(spool)
    assert busy.value.pid in (os.getpid(), -1)
    q.put(b"still here")
    (spool / "notes").write_text("not ours")
    q.close()
    mpqueue.destroy(spool)
    assert [path.name for path in spool.iterdir()] == ["notes"]
    assert semaphore.inspect(name) is None
    with pytest.raises(mpqueue.NotAQueue):
        mpqueue.destroy(spool)


def test_mode_is_kept_whatever_the_umask(spool: Path) -> None:
    old = os.umask(0o077)
    try:
        with mpqueue.Queue(spool, segment_size=65536, mode=0o660) as q:
            found = semaphore.inspect(q.gate_name)
    finally:
        os.umask(old)
    assert stat.S_IMODE((spool / "meta").stat().st_mode) == 0o660
    assert stat.S_IMODE(spool.stat().st_mode) == 0o770
    assert found is not None
    if found.file:
        assert found.mode == 0o660
    mpqueue.destroy(spool)


def test_queue_works_without_a_semaphore(
    open_queue: OpenQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import posix_ipc

    def refuse(*_: object, **__: object) -> object:
        raise posix_ipc.PermissionsError("no /dev/shm")

    monkeypatch.setattr(posix_ipc, "Semaphore", refuse)
    monkeypatch.setattr(semaphore, "_warned", False)
    for _ in range(2):
        open_queue().put(b"x")
    assert [record.levelname for record in caplog.records if "semaphore" in record.message] == [
        "WARNING"
    ]


def test_stats_are_a_frozen_snapshot_under_the_metric_words(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"x"] * 10)
    with q.consumer() as c:
        items = c.reserve_many(4)
        c.ack_many(items[:2])
        items[2].nack()
        now = q.stats()
        assert (now.items_enqueued, now.items_delivered, now.items_acked) == (10, 4, 2)
        assert (now.items_nacked, now.depth, now.reserved_items) == (1, 8, 1)
        assert (now.ready_items, now.consumer_pid) == (7, os.getpid())
        assert now.consumer_attached
        items[3].ack()
    assert now.durability == "group"
    assert now.sync_duration_seconds.count == sum(now.sync_duration_seconds.counts) >= 1
    assert now.unsynced_items == 0
    assert not (now.sealed or now.poisoned or now.fault)
    assert pickle.loads(pickle.dumps(now)) == now
    with pytest.raises(AttributeError):
        now.depth = 0
    with pytest.raises(TypeError):
        mpqueue.Stats(depth=1)
    assert set(_native.Queue._stats(q)) >= {"depth", "flush_histogram"}


def test_members_show_who_is_attached(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"x")
    with q.consumer():
        (me,) = [member for member in q.members() if member.incarnation == q.incarnation]
    assert (me.pid, me.alive, me.consumer, me.items_enqueued) == (os.getpid(), True, True, 1)
    assert me.joined_at > 1e9


def test_checkpoint_works_with_and_without_the_role(open_queue: OpenQueue) -> None:
    q, other = open_queue(), open_queue()
    q.put(b"x")
    q.checkpoint()
    with q.consumer() as c:
        with c.reserve():
            pass
        q.checkpoint()
        with pytest.raises(mpqueue.ConsumerBusy):
            other.checkpoint()
    other.checkpoint()


# ---- signals, forks


def test_signal_handler_ends_a_blocked_put(
    open_queue: OpenQueue, interrupts: Callable[[Callable[[], object]], None]
) -> None:
    q = open_queue(capacity=1, durability="none")
    q.put(b"full")
    interrupts(_raise)
    with pytest.raises(Interrupt):
        q.put(b"never")
    interrupts(_raise)
    with pytest.raises(Interrupt):
        q.put_many([b"never"])
    assert len(q) == 1


def test_handled_signal_does_not_end_a_wait(
    open_queue: OpenQueue, interrupts: Callable[[Callable[[], object]], None]
) -> None:
    q = open_queue(durability="none")
    calls: list[int] = []

    def count() -> None:
        calls.append(1)
        if len(calls) == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
            q.put(b"from the handler")

    with q.consumer() as c:
        interrupts(count)
        with c.reserve() as item:
            assert item.body == b"from the handler"
    assert len(calls) == 3


def test_forked_child_joins_anew_and_puts(run_python: RunPython, spool: Path) -> None:
    printed = run_python(
        """
        import os, sys
        import mpqueue
        q = mpqueue.Queue(sys.argv[1], segment_size=65536)
        q.put(b"parent")
        c = q.consumer()
        item = c.reserve()
        batch = q.batch()
        pid = os.fork()
        if pid == 0:
            for call in (item.ack, c.reserve, lambda: batch.append(b"x")):
                try:
                    call()
                except mpqueue.Closed:
                    pass
                else:
                    os._exit(1)
            try:
                q.consumer()
            except mpqueue.ConsumerBusy:
                pass
            else:
                os._exit(2)
            del item, c
            q.put(b"child")
            q.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert item.body == b"parent"
        item.ack()
        with c.reserve() as item:
            print(item.body.decode(), item.attempts, len(q))
        q.close()
        """,
        spool,
    )
    assert printed.split() == ["child", "1", "1"]


def test_handle_travels_to_spawned_processes(run_python: RunPython, spool: Path) -> None:
    printed = run_python(
        """
        import multiprocessing, sys
        import mpqueue
        if __name__ == "__main__":
            with mpqueue.Queue(sys.argv[1], segment_size=65536) as q:
                for method in ("spawn", "forkserver"):
                    context = multiprocessing.get_context(method)
                    child = context.Process(target=q.put, args=(method.encode(),))
                    child.start()
                    child.join()
                    assert child.exitcode == 0
                with q.consumer() as c:
                    print(*(item.body.decode() for item in c.drain()))
        """,
        spool,
    )
    assert printed.split() == ["spawn", "forkserver"]


def test_interpreter_exit_with_open_handles_is_clean(run_python: RunPython, spool: Path) -> None:
    run_python(
        """
        import sys, threading
        import mpqueue
        q = mpqueue.Queue(sys.argv[1], segment_size=65536, capacity=1, durability="none")
        q.put(b"x")
        c = q.consumer(views=True)
        view = c.reserve()
        body = view.body
        view.ack()
        waiter = threading.Thread(target=c.reserve, daemon=True)
        waiter.start()
        """,
        spool,
    )
    with mpqueue.Queue(spool) as q:
        assert len(q) == 0


@pytest.mark.parametrize("durability", ["group", "sync"])
def test_items_of_a_laxer_policy_are_visible_after_a_change(
    open_queue: OpenQueue, durability: str
) -> None:
    """Broken once: reserve(0) said for ever that there was nothing; only a wait flushed them."""
    q = open_queue(durability="none")
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        held = c.reserve(0)
        assert held is not None
        q.set_options(durability=durability)
    held = None
    with q.consumer() as c:
        assert [item.body for item in c.drain()] == [b"a", b"b"]
