"""Goal: every field of Stats is exact, at any time, for anybody, also after deaths.

Method: each field after each kind of operation, worked out by hand; producers and consumers killed
with SIGKILL, compared with the independent recount of `verify`; warnings counted in the log.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import layout, semaphore
from mpqueue.reader import control as reader_control
from mpqueue.reader import verify
from mpqueue.reader.stats import read_members

SEGMENT = 1 << 16
FRAME_100 = 160  # 48 bytes of header and 100 of payload, rounded up to 32

# Lifetime counters that neither a reopen nor a reboot may turn back.
LASTING = [
    "items_enqueued",
    "bytes_enqueued",
    "items_delivered",
    "items_redelivered",
    "items_acked",
    "items_nacked",
    "leases_expired",
    "dead_items",
    "items_skipped",
    "items_settled",
    "bytes_settled",
    "claim_gaps",
    "lost_items",
    "lost_bytes",
    "loss_events",
    "lost_segments",
    "torn_items",
    "full",
    "items_dropped",
]
# Those that a reopen of the same boot must keep as well.
OF_A_BOOT = [
    "lock_takeovers",
    "lock_waits",
    "lock_wait_max_seconds",
    "waits",
    "segments_made",
    "segments_reused",
    "segments_removed",
    "cursor_writes",
    "corrupt_saved",
    "corrupt_skipped",
    "recoveries",
]


class Watch:
    """Says which fields an operation changed; all others must have stayed as they were."""

    # Not part of what an operation means: they move with time, or with segments prepared ahead.
    VOLATILE = {
        "oldest_ready_age_seconds",
        "waits",
        "lock_waits",
        "lock_wait_max_seconds",
        "cursor_writes",
        "sync_duration_seconds",
    }

    def __init__(self, q: mpqueue.Queue) -> None:
        self.q = q
        self.last = q.stats()

    def changed(self, **expected: object) -> None:
        """The fields that changed since the last look are these, by so much (or to that)."""
        now = self.q.stats()
        found = {}
        for name in mpqueue.Stats.__annotations__:
            before, after = getattr(self.last, name), getattr(now, name)
            if name not in self.VOLATILE and before != after:
                counts = isinstance(after, int) and not isinstance(after, bool)
                found[name] = after - before if counts else after
        assert found == expected
        self.last = now


def test_every_operation_moves_its_fields_and_no_other(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none", capacity=3)
    watch = Watch(q)
    body = b"x" * 100

    q.put(body)
    one = {"items_enqueued": 1, "bytes_enqueued": FRAME_100, "depth": 1, "backlog_bytes": FRAME_100}
    owed = {"next_seq": 1, "floor_lag_items": 1, "unsynced_items": 1, "unsynced_bytes": FRAME_100}
    watch.last = mpqueue.stats.Stats(
        **{name: getattr(watch.last, name) for name in mpqueue.Stats.__annotations__}
        | {name: getattr(q.stats(), name) for name in ("segments", "disk_bytes", "segments_made")}
    )  # the first put makes the first segment
    watch.changed(**one, **owed, ready_items=1)
    q.put_many([body, body])
    watch.changed(**{name: 2 * by for name, by in (one | owed).items()}, ready_items=2)

    with pytest.raises(mpqueue.Full):
        q.put(body, block=False)
    watch.changed(full=1)
    assert q.put(body, block=False, on_full="drop") is None
    watch.changed(full=1, items_dropped=1)
    for refused in (lambda: q.put(b"x" * (1 << 27)), lambda: q.put_many([body] * 4)):
        with pytest.raises(mpqueue.TooLarge):
            refused()
        watch.changed()

    q.flush()
    watch.changed(unsynced_items=-3, unsynced_bytes=-3 * FRAME_100)

    c = q.consumer()
    watch.changed(consumer_attached=True, consumer_pid=os.getpid())
    assert c.peek() is not None
    watch.changed()
    taken = {"reserved_items": 1, "reserved_bytes": FRAME_100, "ready_items": -1}
    first = c.reserve()
    watch.changed(items_delivered=1, **taken, read_seq=1)
    first.nack()
    watch.changed(items_nacked=1, **{name: -by for name, by in taken.items()})
    first = c.reserve()
    watch.changed(items_delivered=1, items_redelivered=1, **taken)
    second = c.reserve()
    watch.changed(items_delivered=1, **taken, read_seq=1)

    less = {
        "depth": -1,
        "backlog_bytes": -FRAME_100,
        "items_settled": 1,
        "bytes_settled": FRAME_100,
    }
    given = {"items_acked": 1, "reserved_items": -1, "reserved_bytes": -FRAME_100}
    second.ack()
    watch.changed(**less, **given)
    second.ack()
    watch.changed()
    first.ack()
    watch.changed(**less, **given, floor=2, floor_lag_items=-2)
    assert c.skip() == 3
    after = {"floor": 1, "floor_lag_items": -1, "read_seq": 1}
    watch.changed(**less, items_skipped=1, ready_items=-1, **after)
    assert q.stats().oldest_ready_age_seconds == 0.0

    q.seal()
    watch.changed(sealed=True)
    q.seal(undo=True)
    watch.changed(sealed=False)
    c.close()
    watch.changed(consumer_attached=False, consumer_pid=-os.getpid())

    other = open_queue()
    watch.changed(members=1, members_alive=1)
    other.put(body)
    watch.changed(**one, **owed, ready_items=1)
    assert other.stats().items_enqueued == 4
    other.set_options(durability="interval", max_bytes=12345)
    watch.changed(durability="interval", capacity_bytes=12345 - watch.last.capacity_bytes)
    other.close()
    now = q.stats()
    assert (now.members_alive, now.unsynced_items) == (1, 0)  # close flushed
    assert now.poisoned is now.fault is now.weak_liveness is False
    assert (now.scheduled_items, now.recoveries, now.unreclaimed) == (0, 0, 0)
    assert now.epoch == watch.last.epoch


def test_flushes_are_counted_and_timed(open_queue: OpenQueue) -> None:
    q = open_queue(durability="sync")
    for number in range(1, 6):
        q.put(b"x")
        took = q.stats().sync_duration_seconds
        assert took.count == sum(took.counts) == number
        assert len(took.bounds) == len(took.counts)
        assert took.sum > 0
        assert q.stats().unsynced_items == 0
    with q.consumer() as c:
        writes = q.stats().cursor_writes
        for number in range(1, 4):
            c.take()
            assert q.stats().cursor_writes == writes + number


def test_age_of_the_oldest_item_grows_until_it_is_acked(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    assert q.stats().oldest_ready_age_seconds == 0.0
    q.put(b"first")
    began = time.time()
    q.put(b"second")
    while time.time() < began + 0.05:
        pass
    first = q.stats().oldest_ready_age_seconds
    assert 0.05 <= first < q.stats().oldest_ready_age_seconds
    with q.consumer() as c:
        held = c.reserve()
        assert q.stats().oldest_ready_age_seconds > first  # in hand is not acked
        held.ack()
        later = c.reserve()
        assert 0 < q.stats().oldest_ready_age_seconds <= time.time() - began + 1
        later.ack()
    assert q.stats().oldest_ready_age_seconds == 0.0


def test_segments_and_their_bytes_agree_with_the_directory(
    open_queue: OpenQueue, spool: Path
) -> None:
    q = open_queue(segment_size=SEGMENT, durability="none", max_segments=6, keep_segments=2)
    body = b"x" * 4000
    with q.consumer() as c:
        for _ in range(200):
            q.put(body)
            c.take()
        for _ in range(30):
            q.put(body)
        c.checkpoint()
        stats = q.stats()
        files = [entry for entry in spool.iterdir() if entry.name.startswith("segment-")]
        assert stats.segments + stats.kept_segments == len(files)
        assert stats.disk_bytes == sum(entry.stat().st_size for entry in spool.iterdir())
        assert stats.segments_made + stats.segments_reused - stats.segments_removed >= len(files)
        assert stats.segments_made - stats.segments_removed == len(files) <= 6
        assert stats.segments_reused > 0
        assert stats.unreclaimed == 0
        assert stats.capacity_bytes == 5 * (SEGMENT - layout.SEGMENT_FIRST)
        for item in c.drain():
            assert item.body == body
    assert q.stats().blocked_on_window is False


def test_a_full_window_is_shown(open_queue: OpenQueue) -> None:
    q = open_queue(durability="none", ack_window=64)
    q.put_many([b"x"] * 100)
    with q.consumer() as c:
        items = c.reserve_many(100, timeout=0)
        assert [item.seq for item in items] == list(range(1, 64))  # two words of 32 seqs
        assert q.stats().blocked_on_window is True
        assert (q.stats().ready_items, q.stats().reserved_items) == (37, 63)
        c.ack_many(items[1:])
        assert c.reserve(timeout=0) is None
        assert q.stats().blocked_on_window is True
        items[0].ack()
        with c.reserve(timeout=0) as item:
            assert item.seq == 64
        assert q.stats().blocked_on_window is False


# ---- who may read them, and when


def _lasting(stats: mpqueue.Stats, *names: str) -> dict[str, object]:
    return {name: getattr(stats, name) for name in (*LASTING, *names)}


def _use(q: mpqueue.Queue) -> None:
    """Moves every lasting counter but those of damage and gaps, over several segments."""
    q.put_many([b"x" * 3000] * 10)
    q.set_options(capacity=len(q))
    assert q.put(b"x", block=False, on_full="drop") is None
    q.set_options(capacity=None)
    with q.consumer() as c:
        c.reserve().nack()
        for item in c.reserve_many(5):
            item.ack()
        c.skip()
        c.rewind()
        held = c.reserve_many(2)
        assert held
        c.checkpoint()
        held[0].nack()
        del held


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_numbers_outlive_reclaim_reopen_and_reboot(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-0")
    monkeypatch.setattr(reader_control, "boot_id", lambda: os.environ["MPQ_BOOT_ID"])
    q = open_queue(segment_size=SEGMENT, durability="none")
    epoch, last, freed = q.stats().epoch, _lasting(q.stats()), 0
    for number in range(12):
        _use(q)
        before = q.stats()
        assert all(last[name] <= value for name, value in _lasting(before).items())
        q.close()
        assert _lasting(q.stats(), "depth", *OF_A_BOOT) == _lasting(before, "depth", *OF_A_BOOT)
        freed += before.segments_removed + before.segments_reused
        reboot = number % 3 == 2
        if reboot:
            monkeypatch.setenv("MPQ_BOOT_ID", f"boot-{number}")
        q = open_queue()
        after = q.stats()
        names = ("depth",) if reboot else ("depth", "floor", "next_seq", *OF_A_BOOT)
        assert _lasting(after, *names) == _lasting(before, *names)
        assert (after.epoch > epoch) is reboot
        assert after.next_seq >= before.next_seq
        epoch, last = after.epoch, _lasting(after)
        with mpqueue.inspect(spool) as view:
            assert view.counts().depth == after.depth
            for name, value in view.counters.items():
                kind, _, what = name.rpartition("_")
                renamed = f"{what}_{kind}" if f"{what}_{kind}" in LASTING else name
                if renamed in LASTING:
                    assert value == getattr(after, renamed), name
    assert freed


def test_attempts_outlive_consumers_and_a_reboot(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a consumer that met the item no more: a poisonous item stays known."""
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-0")
    q = open_queue(durability="none")
    q.put_many([b"poison", b"x"])
    with q.consumer() as c:
        for _ in range(3):
            c.reserve().nack()
    for _ in range(2):  # both slots of the cursor are written again
        with q.consumer() as c:
            c.checkpoint()
    q.close()
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-1")
    q = open_queue()
    with q.consumer() as c:
        items = c.reserve_many(2)
        assert [item.attempts for item in items] == [4, 1]
        c.ack_many(items)


def test_another_process_reads_the_same(
    open_queue: OpenQueue, run_python: RunPython, spool: Path
) -> None:
    q = open_queue(durability="none")
    q.put_many([b"x"] * 5)
    with q.consumer() as c:
        item = c.reserve()
        script = """
            import json, sys, mpqueue
            with mpqueue.Queue(sys.argv[1], create=False) as q:
                stats = q.stats()
            assert q.stats().items_enqueued == stats.items_enqueued  # after close too
            print(json.dumps({n: getattr(stats, n) for n in stats.__annotations__}, default=vars))
        """
        theirs = json.loads(run_python(script, spool))
        ours = q.stats()
        assert (theirs.pop("members_alive"), ours.members_alive) == (2, 1)
        for name in ("oldest_ready_age_seconds", "sync_duration_seconds", "members"):
            theirs.pop(name)
        assert theirs == {name: getattr(ours, name) for name in theirs}
        assert theirs["consumer_pid"] == os.getpid()
        item.ack()


# ---- deaths

_PRODUCER = """
import sys, mpqueue
q = mpqueue.Queue(sys.argv[1], create=False)
print("ready", flush=True)
while True:
    q.put(b"x" * 200)
    q.put_many([b"y" * 50] * 5)
"""
_CONSUMER = """
import sys, mpqueue
q = mpqueue.Queue(sys.argv[1], create=False)
c = q.consumer(wait=3600)
print("ready", flush=True)
n = 0
while True:
    for item in c.reserve_many(7):
        n += 1
        item.ack() if n % 5 else item.nack()
"""


def _start(code: str, path: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["none", "group"])
def test_counts_are_exact_under_kills(open_queue: OpenQueue, spool: Path, durability: str) -> None:
    seed = int(os.environ.get("MPQ_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"replay with MPQ_SEED={seed}")
    rng = random.Random(seed)
    q = open_queue(durability=durability, segment_size=SEGMENT, capacity=500)
    for _ in range(10):
        before = q.stats()
        workers = [_start(_CONSUMER, q.path)] + [_start(_PRODUCER, q.path) for _ in range(2)]
        target = before.items_acked + rng.randrange(10, 500)
        while q.stats().items_acked < target:
            assert all(worker.poll() is None for worker in workers)
        rng.shuffle(workers)
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
        stats = q.stats()
        report = verify(spool)
        assert not report.damage
        assert stats.depth == report.counts.depth == report.stated["depth"]
        assert stats.backlog_bytes == report.counts.backlog_bytes
        assert stats.items_enqueued == stats.items_settled + stats.depth
        assert stats.items_settled == stats.items_acked + stats.claim_gaps
        assert stats.items_delivered >= stats.items_acked + stats.items_nacked
        assert stats.items_redelivered <= stats.items_delivered
        assert (stats.lost_items, stats.torn_items, stats.fault) == (0, 0, False)
        assert (stats.members_alive, stats.consumer_attached, stats.consumer_pid) == (1, False, 0)
        for name in (*LASTING, *OF_A_BOOT):
            assert getattr(before, name) <= getattr(stats, name), name
    dead = verify(spool).counts
    with q.consumer() as c:
        assert q.stats().reserved_items == 0
        taken = 0
        while len(q):
            if (item := c.reserve(timeout=0.01)) is not None:
                item.ack()
                taken += 1
    stats = q.stats()
    assert taken == dead.ready
    assert stats.items_enqueued == stats.items_acked + stats.claim_gaps
    assert (stats.depth, stats.backlog_bytes, stats.ready_items) == (0, 0, 0)
    assert stats.bytes_enqueued == stats.bytes_settled


@pytest.mark.crash
def test_members_show_what_each_of_them_did(open_queue: OpenQueue, spool: Path) -> None:
    """The sum over all is what stats() says; the reader from outside and the CLI agree."""
    q, other = open_queue(capacity=2), open_queue()
    q.put(b"1")
    q.put(b"2")
    for _ in range(3):
        assert other.put(b"no", timeout=0, on_full="drop") is None
    with pytest.raises(mpqueue.Full):
        other.put(b"no", timeout=0.05)
    (mine, theirs), now = q.members(), q.stats()
    assert (mine.flushes, mine.full, mine.items_dropped, mine.items_enqueued) == (2, 0, 0, 2)
    assert (theirs.flushes, theirs.full, theirs.items_dropped) == (0, 4, 3)
    assert mine.flush_seconds == pytest.approx(now.sync_duration_seconds.sum) != 0
    assert theirs.waits >= 1
    for field in ("full", "items_dropped", "waits", "lock_waits"):
        assert getattr(mine, field) + getattr(theirs, field) == getattr(now, field)
    longest = max(mine.lock_wait_max_seconds, theirs.lock_wait_max_seconds)
    assert longest == now.lock_wait_max_seconds
    assert mine.pid_namespace == theirs.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    with mpqueue.inspect(spool) as view:
        assert read_members(view) == [mine, theirs]


def test_what_a_power_cut_could_take_is_known_of_each_member(
    open_queue: OpenQueue, spool: Path
) -> None:
    """unsynced_bytes of members: a flush by anybody covers what was put before it."""
    q, other = open_queue(durability="none"), open_queue()

    def exposed() -> tuple[int, ...]:
        with mpqueue.inspect(spool) as view:
            assert read_members(view) == q.members()
        found = tuple(member.unsynced_bytes for member in q.members())
        assert sum(found) == q.stats().unsynced_bytes
        return found

    q.put(b"x" * 100)
    other.put_many([b"x" * 100] * 3)
    assert exposed() == (FRAME_100, 3 * FRAME_100)
    other.flush()
    assert exposed() == (0, 0)
    q.put(b"x" * 100, headers={"k": "v"})
    assert exposed()[0] > FRAME_100
    q.set_options(durability="sync")
    other.put(b"y")
    assert exposed() == (0, 0)


def test_dead_members_are_folded_into_the_totals(open_queue: OpenQueue) -> None:
    """More processes than the table holds come and die; no count of theirs is lost."""
    q = open_queue(capacity=1, max_members=16, durability="none")
    q.put(b"full")
    for number in range(1, 41):
        pid = os.fork()
        if pid == 0:
            q.put(b"x", block=False, on_full="drop")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        stats = q.stats()
        assert (stats.items_dropped, stats.full, stats.members_alive) == (number, number, 1)
        assert stats.members <= 16
        assert all(member.full == (member.pid != os.getpid()) for member in q.members())
    assert sum(member.alive for member in q.members()) == 1


# ---- warnings


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


@pytest.mark.parametrize("read", ["reserve", "on_loss"])
def test_loss_is_told_once(
    open_queue: OpenQueue, spool: Path, caplog: pytest.LogCaptureFixture, read: str
) -> None:
    q = open_queue(durability="none")
    q.put_many([b"good", b"damaged", b"fine"])
    (segment,) = (path for path in spool.iterdir() if b"damaged" in path.read_bytes())
    with open(segment, "r+b") as file:
        file.seek(segment.read_bytes().index(b"damaged"))
        file.write(b"DAMAGED")
    with q.consumer(on_loss=None if read == "reserve" else lambda _: None) as c:
        c.take()
        assert _told(caplog) == []
        if read == "reserve":
            with pytest.raises(mpqueue.Corrupt):
                c.reserve()
        c.take()
        c.reserve(timeout=0)
        q.flush()
    (message,) = _told(caplog)
    assert "1 item," in message
    stats = q.stats()
    assert (stats.lost_items, stats.loss_events, stats.corrupt_saved) == (1, 1, 1)
    assert stats.lost_bytes == 64
    assert (stats.items_acked, stats.items_settled, stats.depth) == (2, 3, 0)
    q.close()
    q = open_queue()
    with q.consumer() as c:
        assert c.reserve(timeout=0) is None
    assert _told(caplog) == []
    assert _lasting(q.stats()) == _lasting(stats)


@pytest.mark.crash
@pytest.mark.parametrize("found_by", ["consumer", "recovery", "repair"])
def test_lost_segments_are_counted(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Two files next to each other: each once, and for good."""
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-0")
    monkeypatch.setattr(reader_control, "boot_id", lambda: os.environ["MPQ_BOOT_ID"])
    q = open_queue(segment_size=SEGMENT, keep_segments=0)
    for _ in range(70):
        q.put(b"x" * 4000)
    with q.consumer() as c:
        c.take()
        c.checkpoint()
    q.close()
    files = sorted(spool.glob("segment-*"))
    for path in files[1:3]:
        path.unlink()
    if found_by == "repair":
        mpqueue.repair(spool)
    if found_by == "recovery":
        monkeypatch.setenv("MPQ_BOOT_ID", "boot-1")
    q = open_queue()
    with q.consumer(on_loss=lambda _: None) as c:
        got = sum(1 for item in c.drain() if not item.ack())
    stats = q.stats()
    assert (stats.lost_segments, got + stats.lost_items) == (2, 69)
    assert stats.lost_items == 2 * ((SEGMENT - layout.SEGMENT_FIRST) // 4064)
    q.close()
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-2")
    with mpqueue.inspect(spool) as view:
        assert view.counters["lost_segments"] == 2
    assert open_queue().stats().lost_segments == 2


@pytest.mark.crash
def test_recovery_with_torn_items_is_told_once(
    open_queue: OpenQueue,
    spool: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine died before an item that nobody had flushed was written, under policy none."""
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-0")
    code = """
        import os, signal, sys, mpqueue
        q = mpqueue.Queue(sys.argv[1], segment_size=1 << 20, durability="none")
        q.put(b"whole")
        q.flush()
        q.put(b"torn away")
        q.put(b"behind")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(code), spool]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    (segment,) = (path for path in spool.iterdir() if b"torn away" in path.read_bytes())
    with open(segment, "r+b") as file:
        file.seek(segment.read_bytes().index(b"torn away"))
        file.write(bytes(9))
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-1")
    q = open_queue()
    with q.consumer() as c:
        assert [item.body for item in c.drain()] == [b"whole", b"behind"]
    q.flush()
    stats = q.stats()
    assert (stats.recoveries, stats.torn_items, stats.recovered_at_most) == (1, 1, 1)
    assert (stats.lost_items, stats.items_acked, stats.depth) == (0, 2, 0)
    (message,) = _told(caplog)
    assert "recovered after a crash: 1 item was torn, at most 1 may be missing" in message
    q.close()
    q = open_queue()
    assert _told(caplog) == []
    assert q.stats().torn_items == 1


def test_missing_semaphore_is_told_once(
    open_queue: OpenQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no /dev/shm here")

    posix_ipc = pytest.importorskip("posix_ipc")
    monkeypatch.setattr(semaphore, "_warned", False)
    monkeypatch.setattr(posix_ipc, "Semaphore", fail)
    for _ in range(3):
        q = open_queue(durability="none")
        q.put(b"x")
        q.flush()
    (message,) = _told(caplog)
    assert "no semaphore" in message
    assert "no /dev/shm here" in message


def test_foreign_semaphore_is_told_once(
    open_queue: OpenQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made, and is gone when the native half opens it."""
    ensure = semaphore.ensure

    def ensure_and_lose(name: str, mode: int, directory: str) -> bool:
        return ensure(name, mode, directory) and semaphore.unlink(name)

    monkeypatch.setattr(semaphore, "ensure", ensure_and_lose)
    q = open_queue(durability="none")
    for _ in range(3):
        q.put(b"x")
        q.flush()
    q.close()
    (message,) = _told(caplog)
    assert "its semaphore is missing" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [lambda c: c.reserve(timeout=3), lambda c: c.reserve_many(5, timeout=3), lambda c: c.wait(3)],
    ids=["reserve", "reserve_many", "wait"],
)
def test_idle_consumer_costs_next_to_nothing(
    open_queue: OpenQueue, call: Callable[[mpqueue.Consumer], object]
) -> None:
    q = open_queue()
    q.put(b"x")
    with q.consumer() as c:
        c.take()  # the helper thread has run too
        cpu, wall = time.process_time(), time.monotonic()
        assert not call(c)
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
    print(f"{share:.3%} of a core")
    assert share < 0.01
