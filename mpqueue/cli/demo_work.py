"""The processes of the demo: producers that push lines, a consumer that checks them.

Accounting that survives SIGKILL. A producer writes to its ledger how many lines it is about to push
and, after the put returned, how many were accepted; its replacement goes on after the last accepted
line, so lines of the batch in flight may be pushed twice. The consumer appends one record an item
to its log before it acks, so an item acked is an item logged.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

TAG = struct.Struct("<HI")
RECORD = struct.Struct("<QIHH")
_LEDGER = struct.Struct("<QQ")


class Job(NamedTuple):
    """What all processes of one demo know."""

    queue: str
    work: Path
    files: list[list[Path]]
    totals: list[int]
    batch: int


def lines_of(files: Iterable[Path]) -> Iterator[bytes]:
    """All lines of the files, in order, each with its line end."""
    for file in files:
        with file.open("rb") as stream:
            yield from stream


def digests_of(files: Iterable[Path]) -> tuple[array[int], int]:
    """The oracle: an 8-byte digest of each line, straight from the files; and all their bytes."""
    digests = array("Q")
    size = 0
    for line in lines_of(files):
        size += len(line)
        digests.append(digest(line))
    return digests, size


def digest(line: bytes) -> int:
    """What a line is compared by."""
    return int.from_bytes(blake2b(line, digest_size=8).digest(), "little")


class Ledger:
    """Two numbers of one producer in a file: lines handed to put, lines accepted."""

    def __init__(self, work: Path, producer: int) -> None:
        """Makes the file when it is not there."""
        self._descriptor = os.open(
            work / f"ledger-{producer}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def read(self) -> tuple[int, int]:
        """Lines pushed and lines accepted so far."""
        data = os.pread(self._descriptor, _LEDGER.size, 0)
        pushed, accepted = _LEDGER.unpack(data) if data else (0, 0)
        return int(pushed), int(accepted)

    def write(self, pushed: int, accepted: int) -> None:
        """Replaces both; one small write is whole or absent when the process is killed."""
        os.pwrite(self._descriptor, _LEDGER.pack(pushed, accepted), 0)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def log_path(work: Path) -> Path:
    """The consumer's log."""
    return work / "delivered"


def produce(job: Job, producer: int, stop_at: int) -> None:
    """Pushes the producer's lines after the last accepted one; at `stop_at` it waits to be killed.

    `stop_at` < 0: it ends when all are accepted.
    """
    import mpqueue

    ledger = Ledger(job.work, producer)
    pushed, accepted = ledger.read()
    with mpqueue.Queue(job.queue, create=False) as queue:
        batch: list[bytes] = []
        for number, line in enumerate(lines_of(job.files[producer])):
            if number < accepted:
                continue
            batch.append(TAG.pack(producer, number) + line)
            if len(batch) < job.batch and number + 1 < job.totals[producer]:
                continue
            pushed += len(batch)
            ledger.write(pushed, accepted)
            queue.put_many(batch, atomic=False)
            accepted += len(batch)
            ledger.write(pushed, accepted)
            batch = []
            if 0 <= stop_at <= accepted:
                _wait_for_death()


def consume(job: Job, digests: list[array[int]], stop_at: int) -> None:
    """Checks, logs and acks until the queue is sealed and drained; at `stop_at` records it waits.

    `stop_at` < 0: never.
    """
    import mpqueue

    parent = os.getppid()
    log = os.open(log_path(job.work), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    written = os.fstat(log).st_size // RECORD.size
    with mpqueue.Queue(job.queue, create=False) as queue, queue.consumer(wait=30) as consumer:
        while os.getppid() == parent:
            try:
                items = consumer.reserve_many(1000, timeout=1.0)
            except mpqueue.Sealed:
                return
            records = []
            for item in items:
                body = item.body
                producer, number = TAG.unpack_from(body)
                table = digests[producer] if producer < len(digests) else array("Q")
                good = number < len(table) and table[number] == digest(body[TAG.size :])
                records.append(RECORD.pack(item.seq, number, producer, good))
            os.write(log, b"".join(records))
            consumer.ack_many(items)
            written += len(items)
            if 0 <= stop_at <= written:
                _wait_for_death()


def _wait_for_death() -> None:
    """A victim that was faster than its killer stays where it is, holding what it holds."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
