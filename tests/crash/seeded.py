"""Seeded bugs: one-line breaks of the core, each of which an instrument must catch.

usage: python tests/crash/seeded.py [--only NAME ...] [--built DIR] [--trust]

The core is copied, one bug is written into the copy by search and replace, the named instrument is
built and run with a small count, and must fail. An instrument that passes proves nothing about that
bug; a search text that is not found exactly once means that the core has moved on and the bug needs
a new place. First every instrument runs on the core without a bug and must pass (--trust: that was
seen elsewhere). --built names what `make -C tests/crash BUILD=DIR` built from the same core: a copy
of it is where each bug is built, so that only what the bug touches is compiled. Each processor
works on bugs of its own.

Prints one line a bug and `caught k of n`; the exit code is 0 only when k = n.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "mpqueue" / "native"
TIMEOUT_S = 600
EVERYWHERE = ("internal.h",)  # files whose change compiles the whole core

POWER = ("power", "1", "1500", "6")
ROT = ("rot", "1", "4000")
BITS = (*ROT, "segment-000000000003")  # where frames of all kinds are short
HARM = (*ROT, "harm")
NTH = ("nth", "msync")


def copies(scenario: str, every: int = 3) -> tuple[str, ...]:
    """One path of the death-at-every-instruction instrument."""
    return ("steps", "1", str(every), "copies", scenario)


def stops(scenario: str) -> tuple[str, ...]:
    """One path whose process is stopped instead, at 300 points."""
    return ("steps", "1", "3", "300", scenario)


@dataclass(frozen=True)
class Bug:
    """`search` occurs once in `file` and is replaced; `command` must then fail."""

    name: str
    file: str
    search: str
    replace: str
    command: tuple[str, ...]


BUGS = (
    Bug(
        "no msync before a put returns",
        "flush.c",
        "if (queue->io->msync(queue->io, segment->base + start, to - start) != 0)",
        "if (start > to)",
        POWER,
    ),
    Bug(
        "msync of one page only",
        "flush.c",
        "msync(queue->io, segment->base + start, to - start)",
        "msync(queue->io, segment->base + start, 4096)",
        POWER,
    ),
    Bug(
        "a new segment's name is not synced",
        "segment.c",
        "    if (io->sync(io, queue->dirfd) != 0) {\n        int saved = errno;\n",
        "    if (0) {\n        int saved = errno;\n",
        POWER,
    ),
    Bug(
        "published before it is written",
        "put.c",
        "            mpq_claim_write(queue, items, count, &once->claim);\n"
        "            status = mpq_claim_publish(queue, items, count, &once->claim, error);",
        "            status = mpq_claim_publish(queue, items, count, &once->claim, error);\n"
        "            mpq_claim_write(queue, items, count, &once->claim);",
        copies("put-none"),
    ),
    Bug(
        "the body's hash is not checked",
        "reserve.c",
        "if (MPQ_LIKELY(mpq_body_holds(queue, out->segment, out->offset, header)))",
        "if (1)",
        BITS,
    ),
    Bug(
        "a header's hash is not checked",
        "frame.c",
        "        if (!heal(&seen->header, seed))\n            return MPQ_SEE_DAMAGE;",
        "",
        BITS,
    ),
    Bug(
        "the lock is taken from an owner that is not proved dead",
        "lock.c",
        "owner >> 1 == wait->seen >> 1 && mpq_dead(queue, owner >> 1) &&",
        "owner >> 1 == wait->seen >> 1 &&",
        stops("put-stopped"),
    ),
    Bug(
        "the lock of a dead owner is never taken",
        "lock.c",
        "owner >> 1 == wait->seen >> 1 && mpq_dead(queue, owner >> 1) &&",
        "owner == 0 &&",
        copies("put-none"),
    ),
    Bug(
        "a claim of the living becomes a gap",
        "reserve.c",
        "if (!mpq_dead(queue, claimant)) {",
        "if (0) {",
        stops("batch-stopped"),
    ),
    Bug(
        "the frame of a living claimant at the watermark becomes a gap",
        "watch.c",
        "    if (!mpq_dead(queue, claimant)) {",
        "    if (0) {",
        stops("put-stopped"),
    ),
    Bug(
        "the tail moves before its record is whole",
        "control.c",
        "    store_half(&control->tail[(select + 1) & 1].position, words, TAIL_WORDS);",
        "    atomic_store(&control->tail_select, select + 1);\n"
        "    store_half(&control->tail[(select + 1) & 1].position, words, TAIL_WORDS);",
        copies("put-none"),
    ),
    Bug(
        "an ack is flipped in before its record is whole",
        "control.c",
        "    store_half(&control->consumer_record[(select + 1) & 1].floor, words, CONSUMER_WORDS);",
        "    atomic_store(&control->consumer_select, select + 1);\n"
        "    store_half(&control->consumer_record[(select + 1) & 1].floor, words, CONSUMER_WORDS);",
        copies("ack"),
    ),
    Bug(
        "a batch is published first to last",
        "claim.c",
        "    for (uint32_t i = count; i-- > 0;) {\n        offset -= extent_of(&items[i]);",
        "    offset = claim->offset;\n    for (uint32_t i = 0; i < count; i++) {\n"
        "        offset += i == 0 ? 0 : extent_of(&items[i - 1]);",
        copies("batch"),
    ),
    Bug(
        "segments go before both cursor slots have passed them",
        "reclaim.c",
        "        mpq_min64(consumer->slot_floor_position[0], consumer->slot_floor_position[1]);",
        "        mpq_max64(consumer->slot_floor_position[0], consumer->slot_floor_position[1]);",
        ROT,
    ),
    Bug(
        "segments go before the cursor is durable",
        "reclaim.c",
        "        mpq_min64(consumer->slot_floor_position[0], consumer->slot_floor_position[1]);",
        "        consumer->record.floor_position;",
        ROT,
    ),
    Bug(
        "one cursor slot only",
        "cursor.c",
        "    consumer->cursor_next = 1 - slot;",
        "    consumer->cursor_next = slot;",
        POWER,
    ),
    Bug(
        "the floor passes a long loss before all of it is counted",
        "damage.c",
        "mpq_entry_walked(consumer, first, from, 0, MPQ_ENTRY_LOST);",
        "mpq_entry_walked(consumer, first, from, 0, MPQ_ENTRY_SETTLED), "
        "consumer->read_seq = next_seq;",
        copies("lose", every=1),
    ),
    Bug(
        "a cursor write is not synced",
        "cursor.c",
        "    if (io->datasync(io, consumer->cursor_fd) != 0) {",
        "    if (0) {",
        POWER,
    ),
    Bug(
        "the tag of a window word is ignored",
        "ack.c",
        "value >> 32 == ((seq >> 5) & 0xFFFFFFFFu) &&",
        "value != 1 &&",
        POWER,
    ),
    Bug(
        "poison is known to the handle that met it only",
        "claim.c",
        "if (mpq_load(control->poison_errno) != 0)",
        "if (mpq_load(control->poison_errno) != 0 && queue->published)",
        NTH,
    ),
    Bug(
        "a failed write-back is not latched",
        "flush.c",
        "            mpq_poison(queue, failed, MPQ_STAGE_SEGMENT);",
        "            (void)failed;",
        NTH,
    ),
    Bug(
        "the consumer reads above the durable watermark",
        "reserve.c",
        "    if (mpq_visible_is_durable(queue))\n",
        "    if (0)\n",
        NTH,
    ),
    Bug(
        "what cannot be opened is taken for missing",
        "segment.c",
        "        } else if (saved != ENOENT) {\n            errno = saved;",
        "        } else if (0) {\n            errno = saved;",
        ("nth", "open"),
    ),
    Bug(
        "the next seq comes from what is found only",
        "rebuild_finish.c",
        "    if (meta->epoch != 0)\n"
        "        tail.next_seq = mpq_max64(tail.next_seq, meta->seq_mark);",
        "    tail.next_seq = mpq_max64(r->next, 1);",
        POWER,
    ),
    Bug(
        "what lay where the floor waits is owed",
        "rebuild_walk.c",
        "const bool owed = !here || promised(",
        "const bool owed = true || promised(",
        ("power", "2240", "40", "6"),
    ),
    Bug(
        "recovery is not written back",
        "rebuild_finish.c",
        "        int rc = queue->io->msync(queue->io, segment->base, segment->bytes);",
        "        int rc = 0;",
        POWER,
    ),
    Bug(
        "the generation is absent from the hash seed",
        "internal.h",
        "    return hash_seed + generation * MPQ_SEED_GENERATION + offset * MPQ_SEED_OFFSET;",
        "    return hash_seed + (generation & 0) + offset * MPQ_SEED_OFFSET;",
        HARM,
    ),
    Bug(
        "a lost item is not counted",
        "ack.c",
        "        totals->lost_items++;\n",
        "",
        BITS,
    ),
    Bug(
        "the key of a gap counts",
        "once.c",
        "case MPQ_GAP: return FOUND_NONE;",
        "case MPQ_GAP: return FOUND_ITEM;",
        copies("key"),
    ),
    Bug(
        "a gap is settled with its key",
        "reserve.c",
        "mpq_keys_void(consumer->queue, seq);",
        "",
        copies("key"),
    ),
    Bug(
        "segments are freed before their keys are saved",
        "reclaim.c",
        "mpq_keys_save(queue, &error) == MPQ_OK",
        "true",
        POWER,
    ),
    Bug(
        "a duplicate does not wait for the flush of the first",
        "put.c",
        "if (keyed->newest != 0)",
        "if (0)",
        POWER,
    ),
    Bug(
        "an item is acked before its dead letter is durable",
        "letter.c",
        "    return mpq_flush(to, &unbounded, error);",
        "    return MPQ_OK;",
        POWER,
    ),
    Bug(
        "the name of dead/ is not synced",
        "open.c",
        "    if (io->sync(io, parent) != 0)",
        "    if (0)",
        POWER,
    ),
    Bug(
        "a hand-out is not counted",
        "attempts.c",
        "    if (attempts < 0xFFFF)\n        attempts++;",
        "",
        copies("attempts"),
    ),
    Bug(
        "who let a lease run out can ack what somebody else has",
        "reserve.c",
        "entry->token = ++consumer->next_token;",
        "entry->token = 1;",
        copies("lease"),
    ),
)


class Rig:
    """The core, the instruments built from it, and copies of both with a bug in them."""

    def __init__(self, directory: Path, built: Path) -> None:
        self.directory = directory
        self.built = built

    def run(self, build: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        """Runs an instrument."""
        # A failing instrument leaves its queue for whoever looks into it: here nobody does.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="mpq-seeded-", dir=memory) as scratch:
            return subprocess.run(
                [str(build / command[0]), *command[1:]],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                env={**os.environ, "MPQ_CRASH_DIR": scratch},
            )

    def with_bug(self, bug: Bug) -> subprocess.CompletedProcess[str]:
        """Builds and runs the bug's instrument with the bug in the core; raises if it cannot be
        built."""
        native, build = self.directory / "native", self.directory / "build"
        try:
            shutil.copytree(NATIVE, native)  # with its times, as make wants them
            shutil.copytree(self.built, build)
            path = native / bug.file
            whole = path.read_text()
            if whole.count(bug.search) != 1:
                raise LookupError(f"{bug.file}: {whole.count(bug.search)} places for {bug.name!r}")
            path.write_text(whole.replace(bug.search, bug.replace))
            _make(native, build, build / bug.command[0], "FAST=-O1", "WERROR=")
            return self.run(build, bug.command)
        finally:
            shutil.rmtree(self.directory)


def _make(native: Path, build: Path, *words: object) -> None:
    """A build that fails raises."""
    subprocess.run(
        ["make", "-s", "-C", str(HERE), f"NATIVE={native}", f"BUILD={build}", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
    )


_rig: Rig  # of a worker


def _begin(directory: Path, built: Path, processors: Queue[int]) -> None:
    """A worker and its children stay on a processor of their own."""
    global _rig
    processor = processors.get()
    os.sched_setaffinity(0, {processor})
    _rig = Rig(directory / f"processor-{processor}", built)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    for line in (done.stderr + done.stdout).splitlines():
        if "FAILED" in line or "ERROR" in line or "memory world" in line:
            return line.strip()[:110]
    return f"exit code {done.returncode}"


def _passes(command: tuple[str, ...]) -> str:
    done = _rig.run(_rig.built, command)
    return "" if done.returncode == 0 else f"{command} fails without a bug: {_reason(done)}"


def _catches(bug: Bug) -> bool:
    began = time.monotonic()
    try:
        done = _rig.with_bug(bug)
        seen = done.returncode != 0
        what = _reason(done) if seen else "NOT CAUGHT"
    except subprocess.TimeoutExpired:
        seen, what = True, f"hangs for {TIMEOUT_S} s"
    print(
        f"{'caught' if seen else 'MISSED'} by {bug.command[0]:5} in "
        f"{time.monotonic() - began:5.1f} s  {bug.name}: {what}",
        flush=True,
    )
    return seen


def run(bugs: list[Bug], directory: Path, built: Path | None, *, trust: bool) -> int:
    """Returns how many were caught; prints one line each."""
    if built is None:
        built = directory / "built"
        _make(NATIVE, built, f"-j{os.cpu_count() or 1}")
    fork = multiprocessing.get_context("fork")
    processors: Queue[int] = fork.Queue()
    allowed = sorted(os.sched_getaffinity(0))
    for processor in allowed:
        processors.put(processor)
    with ProcessPoolExecutor(
        len(allowed), fork, initializer=_begin, initargs=(directory, built, processors)
    ) as pool:
        for complaint in pool.map(_passes, () if trust else sorted({b.command for b in bugs})):
            if complaint:
                raise AssertionError(complaint)
        return sum(pool.map(_catches, bugs))


def main() -> int:
    """Runs all bugs, or those whose name contains one of --only."""
    parser = argparse.ArgumentParser(description="Seeded bugs that the instruments must catch.")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--built", type=Path, help="instruments built from this core before")
    parser.add_argument("--trust", action="store_true", help="no runs without a bug")
    options = parser.parse_args()
    bugs = [b for b in BUGS if not options.only or any(part in b.name for part in options.only)]
    bugs.sort(key=lambda bug: bug.file not in EVERYWHERE)  # the longest builds first
    with tempfile.TemporaryDirectory(prefix="mpq-seeded-") as directory:
        caught = run(bugs, Path(directory), options.built, trust=options.trust)
    print(f"seeded bugs: caught {caught} of {len(bugs)}")
    return 0 if caught == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
