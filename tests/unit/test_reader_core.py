"""The second reader against the core: whatever the core did, both must tell the same story.

Method: real queues with small segments, random operations (seed printed), then the reader's items
and recount beside the core's own numbers; after random damage, beside what the core delivers.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from mpqueue import layout
from mpqueue.reader import inspect, verify

SMALL = {"segment_size": 64 * 1024, "ack_window": 256, "max_members": 8}


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


def agree(path: Path, queue: mpqueue.Queue) -> None:
    """The recount equals the core's gauges."""
    report = verify(path)
    stats = queue.stats()
    assert not [finding for finding in report.findings if finding.severity != "note"]
    assert report.counts.depth == stats.depth
    assert report.counts.backlog_bytes == stats.backlog_bytes
    with inspect(path) as view:
        assert len(list(view.items())) == report.counts.ready
        assert view.counters["settled_items"] == stats.items_settled
        assert view.counters["acked_items"] == stats.items_acked
        assert view.acks.floor == stats.floor


def test_random_use_is_told_alike(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "queue"
    contents: dict[int, bytes] = {}
    for _ in range(4):
        with mpqueue.Queue(path, **SMALL) as queue, queue.consumer() as consumer:
            out: list[mpqueue.Item] = []
            for step in range(150):
                choice = rng.random()
                size = rng.choice([0, 1, 31, 500, 3000]) if choice > 0.02 else 100_000
                if choice < 0.35:
                    body = rng.randbytes(size)
                    contents[queue.put(body, headers={"step": str(step)})] = body
                elif choice < 0.5:
                    batch = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 9))]
                    contents.update(zip(queue.put_many(batch), batch, strict=True))
                elif choice < 0.75:
                    out += consumer.reserve_many(rng.randrange(1, 10), timeout=0)
                elif out:
                    item = out.pop(rng.randrange(len(out)))
                    if rng.random() < 0.8:
                        item.ack()
                        contents.pop(item.seq)
                    else:
                        item.nack()
                if step % 30 == 0:
                    agree(path, queue)
            for item in out:
                item.nack()
            agree(path, queue)
            with inspect(path) as view:
                assert {record.seq: record.body for record in view.items()} == contents
                assert all(r.id.startswith(f"{queue.uuid}:") for r in view.items())


def test_attempts_and_members_are_read_from_shared_memory(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with mpqueue.Queue(path, **SMALL) as queue, queue.consumer() as consumer:
        queue.put(b"again")
        for _ in range(3):
            item = consumer.reserve(0)
            assert item is not None
            item.nack()
        with inspect(path) as view:
            (record,) = view.items()
            assert record.attempts == 3
            (member,) = view.members
            assert (member.pid, member.alive, member.role) == (os.getpid(), True, "consumer")
    with inspect(path) as view:
        assert not any(member.alive for member in view.members)


def _push(path: str) -> None:
    """Runs until it is killed."""
    with mpqueue.Queue(path) as queue:
        while True:
            queue.put_nowait(b"y" * 20_000, on_full="drop")
            queue.put_many([b"x" * 500] * 3, timeout=1)


@pytest.mark.crash
def test_killed_producers_are_told_alike(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "queue"
    context = multiprocessing.get_context("spawn")
    with mpqueue.Queue(path, durability="none", **SMALL) as queue:
        for _ in range(5):
            child = context.Process(target=_push, args=(str(path),))
            child.start()
            already = queue.stats().next_seq
            while queue.stats().next_seq < already + rng.randrange(5, 60):
                assert child.is_alive()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            agree(path, queue)
            with queue.consumer() as consumer:
                taken = 0
                expected = verify(path).counts
                while (item := consumer.reserve(0)) is not None:
                    item.ack()
                    taken += 1
                assert taken == expected.ready
                agree(path, queue)
                assert len(queue) == 0


@pytest.mark.crash
def test_a_live_queue_is_never_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    code = (
        "import sys, mpqueue\n"
        "q = mpqueue.Queue(sys.argv[1], create=False)\n"
        "c = q.consumer()\n"
        "print(1, flush=True)\n"
        "while True:\n"
        "    q.put_many([b'z' * n for n in range(50)])\n"
        "    c.ack_many(c.reserve_many(60, timeout=0))\n"
    )
    mpqueue.Queue(path, **SMALL).close()
    busy = subprocess.Popen([sys.executable, "-P", "-c", code, str(path)], stdout=subprocess.PIPE)
    assert busy.stdout is not None
    try:
        assert busy.stdout.readline() == b"1\n"
        for _ in range(30):
            report = verify(path)
            assert not report.damage, report.findings
            assert report.counts.lost == report.counts.damaged == 0
            with inspect(path) as view:
                assert all(len(record.body) < 50 for record in view.items())
                assert view.unreadable == 0
        assert busy.poll() is None
    finally:
        busy.kill()
        busy.wait()
        busy.stdout.close()


def test_what_the_floor_passes_during_a_look_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that are reclaimed between the snapshot and the walk were settled, not lost."""
    path = tmp_path / "queue"
    module = sys.modules[verify.__module__]
    real = module._structure
    with mpqueue.Queue(path, **SMALL) as queue, queue.consumer() as consumer:
        queue.put_many([b"x" * 10_000] * 4, atomic=False)
        for _ in range(40):
            queue.put(b"x" * 10_000)

        def settle_most(inspection: object) -> object:
            consumer.ack_many(consumer.reserve_many(30, timeout=0))
            consumer.checkpoint()
            return real(inspection)

        monkeypatch.setattr(module, "_structure", settle_most)
        report = verify(path)
        assert queue.stats().segments_removed + queue.stats().kept_segments > 0
        assert not report.damage, report.findings
        assert report.counts.lost == 0
        assert report.counts.ready >= 14


def test_missing_files_cost_what_they_held(tmp_path: Path, rng: random.Random) -> None:
    """Any set of segments is removed from a closed queue: every item is found or named as lost."""
    source = tmp_path / "source"
    place: dict[int, int] = {}
    with mpqueue.Queue(source, **SMALL) as queue, queue.consumer() as consumer:
        for number in range(60):
            queue.put(bytes([number]) * rng.randrange(6000))
        consumer.ack_many(consumer.reserve_many(rng.randrange(1, 40), timeout=0))
        for index, item in enumerate(consumer.reserve_many(10, timeout=0)):
            item.nack() if index % 3 else item.ack()
    with inspect(source) as view:
        place = {record.seq: record.generation for record in view.items()}
    path = tmp_path / "queue"
    for _ in range(25):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        names = sorted(file for file in path.iterdir() if file.name.startswith("segment-"))
        gone = rng.sample(names, rng.randrange(1, len(names) + 1))
        for file in gone:
            file.unlink()
        generations = {int(file.name.rpartition("-")[2]) for file in gone}
        lost = {seq for seq, generation in place.items() if generation in generations}
        report = verify(path)
        assert report.counts.lost == len(lost)
        assert report.damage == bool(lost)
        with inspect(path) as view:
            assert {record.seq for record in view.items()} == place.keys() - lost


def _drain(path: Path) -> tuple[list[tuple[int, bytes]], int]:
    """What the core delivers, and how many items it reports as lost."""
    losses: list[mpqueue.Corrupt] = []
    found = []
    with (
        mpqueue.Queue(path, create=False) as queue,
        queue.consumer(on_loss=losses.append) as consumer,
    ):
        while (item := consumer.reserve(0)) is not None:
            found.append((item.seq, bytes(item.body)))
            item.ack()
        assert len(queue) == 0
        assert queue.stats().lost_items == sum(loss.lost_items for loss in losses)
    return found, sum(loss.lost_items for loss in losses)


def test_after_damage_the_core_delivers_what_the_reader_finds(
    tmp_path: Path, rng: random.Random
) -> None:
    source = tmp_path / "source"
    with mpqueue.Queue(source, **SMALL) as queue:
        for number in range(60):
            queue.put(bytes([number]) * rng.randrange(4000))
        queue.put_many([b"batch %d" % number for number in range(10)])
    path = tmp_path / "queue"
    for _ in range(25):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        names = sorted(file for file in path.iterdir() if file.name.startswith("segment-"))
        victim = rng.choice(names)
        data = bytearray(victim.read_bytes())
        start = rng.randrange(layout.SEGMENT_FIRST, len(data))
        for place in range(start, min(start + rng.choice([1, 1, 40, 5000]), len(data))):
            data[place] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        with inspect(path) as view:
            expected = [(record.seq, record.body) for record in view.items()]
        found, _ = _drain(path)
        assert found == expected


def test_bytes_behind_a_segment_harm_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with mpqueue.Queue(path, segment_size=1 << 16) as queue:
        queue.put_many([bytes(9000)] * 20, atomic=False)
    for file in path.glob("segment-*"):
        with file.open("ab") as end:
            end.write(b"\xff" * 100)
    report = verify(path, deep=True)
    assert not report.damage
    assert {finding.severity for finding in report.findings} == {"warning"}
    assert len({finding.file for finding in report.findings}) == len(report.findings)
    with mpqueue.Queue(path) as queue, queue.consumer() as consumer:
        assert len(list(consumer.drain())) == 20
        assert queue.stats().lost_items == 0
