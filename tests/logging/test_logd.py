"""Goal: `mpqueue logd` writes each accepted line once, in each process's order, through kills.

Method: the storm runs real producers and a real logd and kills them when their own progress, seen
in files, has reached seeded numbers; each life of a producer numbers its lines from 0. The seed and
the kill points are printed. MPQ_PROOF=1 takes 8 x 20,000 lines, otherwise there are fewer.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.cli import common, main
from mpqueue.logging import QueueHandler, decode

PROOF = os.environ.get("MPQ_PROOF") == "1"
PRODUCERS = 8
LINES = {"interval": 20_000, "group": 2_000} if PROOF else {"interval": 1_500}
KILLS = 30 if PROOF else 8

# Logs lines until its share is done; after each it notes, in a file, how many were accepted.
PRODUCER = """
import logging, os, struct, sys
from mpqueue.logging import QueueHandler
path, ledger, producer, life, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
log = logging.getLogger("app")
log.addHandler(QueueHandler(path, timeout=None))
log.setLevel(logging.INFO)
note = os.open(ledger, os.O_WRONLY | os.O_CREAT, 0o600)
for number in range(count):
    log.info("line %d %d %d", producer, life, number)
    os.pwrite(note, struct.pack("<Q", number + 1), 0)
"""


def _logd(path: object, file: object, *words: object) -> list[str]:
    command = [sys.executable, "-P", "-m", "mpqueue", "logd", path, "--file", file, *words]
    return list(map(str, command))


def _lines(file: Path) -> Iterator[str]:
    """Of the rotated files, the oldest first, then of the file."""
    rotated = sorted(file.parent.glob(f"{file.name}.[0-9]*"), key=lambda p: -int(p.suffix[1:]))
    for part in (*rotated, file):
        text = part.read_text()
        assert text == "" or text.endswith("\n"), part
        yield from text.splitlines()


class Producer:
    """One producer and its successors."""

    def __init__(self, directory: Path, queue: Path, number: int, lines: int) -> None:
        self._directory, self._queue = directory, queue
        self.number, self._lines = number, lines
        self.lives: list[int] = []  # lines accepted in each life, as far as it could tell
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = (self._ledger(), self.number, len(self.lives), self._lines - self.done())
        command = [sys.executable, "-P", "-c", PRODUCER, self._queue, *words]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)

    def _ledger(self) -> Path:
        return self._directory / f"{self.number}-{len(self.lives)}"

    def accepted(self) -> int:
        """In this life."""
        try:
            return int(struct.unpack("<Q", self._ledger().read_bytes())[0])
        except (FileNotFoundError, struct.error):
            return 0

    def done(self) -> int:
        return sum(self.lives)

    def ended(self) -> bool:
        """Looks; True when it has logged all. A life that was killed is booked and followed."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        assert self.process.stderr is not None
        complaints = self.process.stderr.read()
        self.process.stderr.close()
        assert complaints == b"", complaints.decode()
        assert self.process.returncode in (0, -signal.SIGKILL)
        self.lives.append(self.accepted())
        if self.process.returncode == 0:
            return True
        self.start()
        return False


@pytest.mark.crash
@pytest.mark.timeout(1200 if PROOF else 120)
@pytest.mark.parametrize("durability", LINES)
def test_each_accepted_line_once_and_in_order(tmp_path: Path, spool: Path, durability: str) -> None:
    seed = int(os.environ.get("MPQ_SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    total = PRODUCERS * LINES[durability]
    points = sorted(rng.sample(range(total // 20, total - total // 20), 2 * KILLS))
    victims = [rng.choice(["logd", "producer", "both"]) for _ in points]
    print(f"MPQ_SEED={seed}: {list(zip(points, victims, strict=True))}")
    # Small segments and a bound: producers wait for room while logd is dead.
    mpqueue.Queue(spool, durability=durability, segment_size=1 << 18, max_segments=8).close()
    file = tmp_path / "out.log"
    words = ("--max-bytes", 2 * total, "--format", "%(process)d %(message)s")
    producers = [
        Producer(tmp_path, spool, number, LINES[durability]) for number in range(PRODUCERS)
    ]
    logd = subprocess.Popen(_logd(spool, file, *words), stderr=subprocess.PIPE)
    kills = {"logd": 0, "producer": 0}
    running = list(producers)
    try:
        for producer in producers:
            producer.start()
        while running:
            done = sum(producer.done() for producer in producers)
            done += sum(producer.accepted() for producer in running)
            if points and done >= points[0]:
                points.pop(0)
                victim = victims.pop(0)
                if victim != "producer":
                    logd.kill()
                    _, complaints = logd.communicate()
                    assert complaints == b"", complaints.decode()
                    logd = subprocess.Popen(_logd(spool, file, *words), stderr=subprocess.PIPE)
                    kills["logd"] += 1
                if victim != "logd":
                    process = rng.choice(running).process
                    assert process is not None
                    process.kill()
                    kills["producer"] += 1
            running = [producer for producer in running if not producer.ended()]
            time.sleep(0.001)  # looks again
        mpqueue.Queue(spool).seal()
        _, complaints = logd.communicate()
        assert (logd.returncode, complaints) == (common.OK, b"")
    finally:
        for process in (logd, *(p.process for p in producers)):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    got: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in _lines(file):
        match = re.fullmatch(r"\d+ line (\d+) (\d+) (\d+)", line)
        assert match, line
        producer, life, number = map(int, match.groups())
        got[producer, life].append(number)
    for producer in producers:
        for life, accepted in enumerate(producer.lives):
            numbers = got.pop((producer.number, life), [])
            assert numbers == list(range(len(numbers))), "lost, twice or out of order"
            # The line in flight may have been accepted before it could be noted.
            assert accepted <= len(numbers) <= accepted + 1
    assert not got
    rotated = len(list(tmp_path.glob("out.log.[0-9]*")))
    print(f"logd: {total} lines, {rotated} rotations, {kills}, 0 violations")
    assert rotated >= 8 and min(kills.values()) >= KILLS // 4


# ---- one life ------------------------------------------------------------------------------------


@pytest.fixture
def log(open_queue: OpenQueue) -> logging.Logger:
    made = logging.Logger("app")
    made.addHandler(QueueHandler(open_queue(durability="none")))
    return made


def _run(spool: Path, file: Path, *words: str) -> int:
    return main(["logd", str(spool), "--file", str(file), "--until-empty", *words])


def test_lines_and_what_is_no_record(log: logging.Logger, spool: Path, tmp_path: Path) -> None:
    log.info("caf\u00e9 \udc80\nsecond line")
    with mpqueue.Queue(spool) as q:
        q.put(b"by hand \xff")
    log.info("last")
    file = tmp_path / "out"
    assert _run(spool, file, "--format", "%(levelname)s %(message)s") == common.OK
    first, second, third, fourth = file.read_text(encoding="utf-8").splitlines()
    assert (first, second, fourth) == ("INFO caf\u00e9 \\udc80", "second line", "INFO last")
    assert third.startswith("ERROR item ") and third.endswith(": by hand \\xff")
    assert _run(spool, file) == common.OK
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--one-line", "--format", "%(message)s"], "a\\\\b\\nc\n"),
        (["--format", "%(message)s"], "a\\b\nc\n"),
    ],
)
def test_messages_of_several_lines(
    log: logging.Logger, spool: Path, tmp_path: Path, words: list[str], expected: str
) -> None:
    log.info("a\\b\nc")
    _run(spool, tmp_path / "out", *words)
    assert (tmp_path / "out").read_text() == expected


def test_json_lines(log: logging.Logger, spool: Path, tmp_path: Path) -> None:
    log.info("a\nb", extra={"user": "me"})
    with mpqueue.Queue(spool) as q:
        q.put(b"no record")
    _run(spool, tmp_path / "out", "--jsonl", "--one-line")
    first, second = (tmp_path / "out").read_bytes().splitlines()
    assert json.loads(first)["extra"] == {"user": "me"} and decode(first).getMessage() == "a\nb"
    assert decode(second).getMessage().endswith("no record")


def test_raw_bodies(spool: Path, tmp_path: Path, open_queue: OpenQueue) -> None:
    open_queue().put_many([b"from a shell", b'{"any": "json"}'])
    _run(spool, tmp_path / "out", "--raw")
    assert (tmp_path / "out").read_text() == 'from a shell\n{"any": "json"}\n'


def test_a_record_that_the_format_does_not_fit_is_shown(
    log: logging.Logger, spool: Path, tmp_path: Path
) -> None:
    log.info("without")
    log.info("with", extra={"request": "r1"})
    _run(spool, tmp_path / "out", "--format", "%(request)s %(message)s")
    first, second = (tmp_path / "out").read_text().splitlines()
    assert "does not fit --format" in first and '"message":"without"' in first
    assert second == "r1 with"


def test_backups_bound_the_files(log: logging.Logger, spool: Path, tmp_path: Path) -> None:
    for number in range(100):
        log.info("%05d", number)
    file = tmp_path / "out"
    _run(spool, file, "--format", "%(message)s", "--max-bytes", "60", "--backups", "3")
    assert sorted(p.name for p in tmp_path.glob("out*")) == [
        *("out", "out.1", "out.2", "out.3", "out.mark")
    ]
    assert list(_lines(file)) == [f"{number:05d}" for number in range(60, 100)]


Case = Callable[[Path], list[str]]
CODES: dict[str, tuple[Case, int]] = {
    "no queue": (lambda p: [f"{p}/none", "--file", f"{p}/out"], common.REFUSED),
    "no directory": (lambda p: [f"{p}/spool", "--file", f"{p}/none/out"], common.IO_ERROR),
    "a directory": (lambda p: [f"{p}/spool", "--file", f"{p}"], common.USAGE),
    "a pipe": (lambda p: [f"{p}/spool", "--file", f"{p}/pipe"], common.USAGE),
    "bad format": (lambda p: [f"{p}/spool", "--file", f"{p}/o", "--format", "no"], common.USAGE),
    "no room": (lambda p: [f"{p}/spool", "--file", f"{p}/o", "--max-bytes", "0"], common.USAGE),
}


@pytest.mark.parametrize("case", CODES)
def test_exit_codes(
    open_queue: OpenQueue, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_queue()
    os.mkfifo(tmp_path / "pipe")  # no device: what a mistake here did to it, all would suffer
    words, code = CODES[case]
    assert main(["logd", *words(tmp_path)]) == code
    assert capsys.readouterr().err.startswith("mpqueue: ")


def test_one_consumer_and_one_writer_a_file(
    open_queue: OpenQueue, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpqueue.logging import marked

    q = open_queue()
    with q.consumer():
        assert _run(spool, tmp_path / "out") == common.BUSY
    monkeypatch.setattr(marked, "_LOCK_WAIT_S", 0.0)
    with marked.MarkedFile(tmp_path / "out", "another queue", synced=False):
        assert _run(spool, tmp_path / "out") == common.BUSY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_nothing_half_done(
    log: logging.Logger, spool: Path, tmp_path: Path, number: int
) -> None:
    file = tmp_path / "out"
    words = ("--format", "%(message)s")
    process = subprocess.Popen(_logd(spool, file, *words), stderr=subprocess.PIPE)
    for count in range(200):
        log.info("%d", count)
    while not file.exists() or not file.stat().st_size:
        assert process.poll() is None
    process.send_signal(number)
    _, complaints = process.communicate()
    assert (process.returncode, complaints) == (128 + number, b"")
    assert _run(spool, file, *words) == common.OK
    assert list(_lines(file)) == list(map(str, range(200)))


def test_items_of_before_a_reboot_are_recognised(spool: Path, tmp_path: Path) -> None:
    """Death between mark and ack, then a reboot: the queue is rebuilt and begins a new epoch."""
    from mpqueue.logging.marked import MarkedFile, position_of

    def log(*messages: str) -> None:
        handler = QueueHandler(spool, segment_size=1 << 20)
        made = logging.Logger("app")
        made.addHandler(handler)
        for message in messages:
            made.info(message)
        handler.close()

    file = tmp_path / "out"
    log("0", "1", "2", "3", "4")
    with mpqueue.Queue(spool) as q, q.consumer() as consumer:
        items = consumer.reserve_many(3)
        with MarkedFile(file, q.uuid, synced=True) as marked:
            marked.write((position_of(item.id), b"%d\n" % n) for n, item in enumerate(items))
    (spool / "control").unlink()
    log("5", "6")
    with mpqueue.inspect(spool) as view:
        epochs = [position_of(record.id)[0] for record in view.items()]
    assert epochs == sorted(epochs) and len(set(epochs)) == 2
    assert _run(spool, file, "--format", "%(message)s") == common.OK
    assert list(_lines(file)) == list("0123456")
