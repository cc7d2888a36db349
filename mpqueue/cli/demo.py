"""`mpqueue demo`: real lines through the queue, with SIGKILLs on the way, counted by an oracle.

Four processes push every line of the given files while one consumes. One producer and the consumer
are killed in the middle and replaced. At the end each line is accounted for by its content.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from array import array
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mpqueue.cli import children, common, demo_work
from mpqueue.cli.demo_work import Job, Ledger

PRODUCERS = 4
VICTIM = 0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="files of lines (default: Python's own library)"
    )
    parser.add_argument(
        "--durability",
        type=common.durability,
        default=("group", None),
        metavar="D",
        help="sync, group, interval[:50ms] or none (default: group)",
    )
    parser.add_argument(
        "--batch", type=common.whole, default=100, metavar="N", help="lines a put (default: 100)"
    )
    parser.add_argument("--path", metavar="DIR", help="where to make the queue, and keep it")
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 only when nothing was lost and nothing altered, else 5."""
    import mpqueue

    files = [Path(name) for name in args.files] or library_files()
    for file in files:
        if not file.is_file():
            raise common.UsageError(f"{file} is no file")
    with tempfile.TemporaryDirectory(prefix="mpqueue-demo-") as name:
        work = Path(name)
        path = args.path or str(work / "queue")
        if os.path.exists(os.path.join(path, "meta")):
            raise common.UsageError(f"{path} is a queue already: the demo wants one of its own")
        common.make_queue(path, {"durability": args.durability}).close()
        shares = [files[index::PRODUCERS] for index in range(PRODUCERS)]
        try:
            oracle = [demo_work.digests_of(share) for share in shares]
            digests = [table for table, _ in oracle]
            job = Job(path, work, shares, [len(table) for table in digests], args.batch)
            result = Demo(job, digests, sum(size for _, size in oracle)).run()
            result["durability"] = args.durability[0]
        finally:
            children.end_all()
            if args.path is None:
                mpqueue.destroy(path)
    good = not result["lost"] and not result["altered"]
    if args.json:
        common.print_json(result)
    else:
        _show(result, good)
    return common.OK if good else common.DAMAGE


def library_files() -> list[Path]:
    """All Python files of the running interpreter's standard library."""
    root = Path(os.__file__).parent
    return [
        file
        for file in sorted(root.rglob("*.py"))
        if "site-packages" not in file.parts and file.is_file()
    ]


class Demo:
    """One run: starts the processes, kills two of them, counts."""

    def __init__(self, job: Job, digests: list[array[int]], size: int) -> None:
        self._job = job
        self._digests = digests
        self._size = size
        self._total = sum(job.totals)
        self._ledgers = [Ledger(job.work, index) for index in range(PRODUCERS)]
        self._progress = Progress(self._total)
        self._kills = {"producer": 0, "consumer": 0}

    def run(self) -> dict[str, Any]:
        """Runs to the end and returns the numbers."""
        import mpqueue

        totals = self._job.totals
        started = time.monotonic()
        victim_stops = totals[VICTIM] // 2 if totals[VICTIM] > 1 else -1
        producers = [
            self._start(demo_work.produce, index, victim_stops if index == VICTIM else -1)
            for index in range(PRODUCERS)
        ]
        consumer_stops = self._total // 2 if self._total > 1 else -1
        consumer = self._start(demo_work.consume, self._digests, consumer_stops)
        sealed = False
        try:
            while consumer.exitcode is None or not sealed:
                wait([p.sentinel for p in (*producers, consumer) if p.exitcode is None], 0.05)
                accepted = self._pushed()[1]
                delivered = self._delivered()
                self._progress.show(accepted, delivered)
                # The victims die at a third of their way, in the middle of whatever they do.
                own = self._ledgers[VICTIM].read()[1]
                if 3 * own >= totals[VICTIM] > 1 and not self._kills["producer"]:
                    self._kill(producers[VICTIM], "producer")
                    producers[VICTIM] = self._start(demo_work.produce, VICTIM, -1)
                if 3 * delivered >= self._total > 1 and not self._kills["consumer"]:
                    self._kill(consumer, "consumer")
                    consumer = self._start(demo_work.consume, self._digests, -1)
                if not sealed and all(producer.exitcode == 0 for producer in producers):
                    with mpqueue.Queue(self._job.queue, create=False) as queue:
                        queue.seal()
                    sealed = True
                self._check(producers, consumer, sealed)
        finally:
            self._progress.end()
        return self._result(time.monotonic() - started)

    def _start(self, work: Any, *values: Any) -> BaseProcess:
        return children.start(work, self._job, *values)

    def _kill(self, process: BaseProcess, role: str) -> None:
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        self._kills[role] += process.exitcode == -signal.SIGKILL

    @staticmethod
    def _check(producers: list[BaseProcess], consumer: BaseProcess, sealed: bool) -> None:
        """A process that failed by itself ends the demo; it has said why."""
        children.check(producers, "producer")
        children.check([consumer], "consumer")
        if consumer.exitcode == 0 and not sealed:
            raise common.WorkerFailed(f"consumer {consumer.pid} ended before the queue was sealed")

    def _pushed(self) -> tuple[int, int]:
        numbers = [ledger.read() for ledger in self._ledgers]
        return sum(number[0] for number in numbers), sum(number[1] for number in numbers)

    def _delivered(self) -> int:
        try:
            size = demo_work.log_path(self._job.work).stat().st_size
        except FileNotFoundError:
            return 0
        return size // demo_work.RECORD.size

    def _result(self, seconds: float) -> dict[str, Any]:
        """Compares the log with the oracle, line by line."""
        import mpqueue

        seen = [bytearray(total) for total in self._job.totals]
        seqs: set[int] = set()
        delivered = again = twice = altered = 0
        log = demo_work.log_path(self._job.work)
        data = log.read_bytes() if log.exists() else b""
        data = data[: len(data) - len(data) % demo_work.RECORD.size]
        for seq, number, producer, good in demo_work.RECORD.iter_unpack(data):
            delivered += 1
            if seq in seqs:
                again += 1
                continue
            seqs.add(seq)
            if not good:
                altered += 1
            elif seen[producer][number]:
                twice += 1
            else:
                seen[producer][number] = 1
        lost = sum(marks.count(0) for marks in seen)
        pushed, accepted = self._pushed()
        with mpqueue.Queue(self._job.queue, create=False) as queue:
            stats = queue.stats()
        return {
            "lines": self._total,
            "pushed": pushed,
            "accepted": accepted,
            "accepted_unheard": twice,
            "delivered": delivered,
            "redelivered": stats.items_redelivered,
            "checked_again": again,
            "gaps": stats.claim_gaps,
            "lost": lost,
            "altered": altered,
            "seconds": round(seconds, 3),
            "items_per_second": round(delivered / seconds),
            "megabytes_per_second": round(self._size / seconds / 1e6, 1),
            "flushes": stats.sync_duration_seconds.count,
            "killed_producers": self._kills["producer"],
            "killed_consumers": self._kills["consumer"],
            "batch": self._job.batch,
        }


class Progress:
    """A line on stderr that follows the run: redrawn on a terminal, now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._live = sys.stderr.isatty()
        self._next = 0.0
        self._started = time.monotonic()

    def show(self, accepted: int, delivered: int) -> None:
        """Draws when it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.1 if self._live else 2.0)
        rate = delivered / max(now - self._started, 1e-3)
        text = f"accepted {accepted}/{self._total}  delivered {delivered}  {rate:,.0f}/s"
        if not self._live:
            common.say(text)
            return
        # One line, whatever the terminal's width: a wrapped one cannot be drawn over.
        columns = shutil.get_terminal_size().columns
        width = max(0, min(30, columns - len(text) - 4))
        filled = width * min(delivered, self._total) // max(self._total, 1)
        ahead = width * min(accepted, self._total) // max(self._total, 1)
        bar = ("#" * filled).ljust(ahead, "-").ljust(width)
        line = f"[{bar}] {text}"[: columns - 1]
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(result: dict[str, Any], good: bool) -> None:
    common.table(
        [
            ("pushed", f"{result['pushed']} lines, {result['lines']} different ones"),
            (
                "accepted",
                f"{result['accepted']}, and {result['accepted_unheard']} whose producer was "
                "killed before it heard",
            ),
            ("delivered", result["delivered"]),
            (
                "redelivered",
                f"{result['redelivered']} after the consumer was killed, "
                f"{result['checked_again']} of them had been checked before",
            ),
            ("gaps", f"{result['gaps']} claims of the killed producer"),
            ("altered", result["altered"]),
            ("lost", result["lost"]),
            ("items/s", f"{result['items_per_second']:,}"),
            ("MB/s", result["megabytes_per_second"]),
            ("flushes", f"{result['flushes']} ({result['durability']}, {result['batch']} a put)"),
            (
                "kills",
                f"{result['killed_producers']} producer, {result['killed_consumers']} consumer",
            ),
            ("time", common.human_time(result["seconds"])),
        ]
    )
    verdict = "nothing lost, nothing altered" if good else "ITEMS WERE LOST OR ALTERED"
    print(common.colour(verdict, "32" if good else "31"))
