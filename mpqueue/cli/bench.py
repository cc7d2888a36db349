"""`mpqueue bench`: put and consume rates of this machine, and how long one put takes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mpqueue.cli import children, common

PRODUCERS_MAX = 256
BATCH_MAX = 1_000_000
START_TIMEOUT = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="where to make the queue (default: temporary)"
    )
    parser.add_argument(
        "--producers",
        type=common.number(1, PRODUCERS_MAX),
        default=2,
        metavar="N",
        help=f"processes that put, up to {PRODUCERS_MAX} (default: 2)",
    )
    parser.add_argument(
        "--size", type=common.size, default=256, metavar="B", help="bytes an item (default: 256)"
    )
    parser.add_argument(
        "--batch",
        type=common.number(1, BATCH_MAX),
        default=1,
        metavar="N",
        help=f"items a put, up to {BATCH_MAX:,} (default: 1)",
    )
    parser.add_argument(
        "--durability",
        type=common.durability,
        default=("group", None),
        metavar="D",
        help="sync, group, interval[:50ms] or none (default: group)",
    )
    parser.add_argument(
        "--seconds",
        type=_some_time,
        default=3.0,
        metavar="S",
        help="how long to put (default: 3)",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def _some_time(text: str) -> float:
    seconds = common.duration(text)
    if seconds == 0:
        raise argparse.ArgumentTypeError("nothing can be measured in no time")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Makes a queue, loads it, prints the rates, removes it."""
    import mpqueue

    with tempfile.TemporaryDirectory(prefix="mpqueue-bench-") as name:
        path = args.path or str(Path(name) / "queue")
        if os.path.exists(os.path.join(path, "meta")):
            raise common.UsageError(f"{path} is a queue already: bench wants one of its own")
        with common.make_queue(path, {"durability": args.durability}) as queue:
            most = queue.options.max_item
        try:
            if args.size > most:
                raise common.UsageError(f"--size {args.size} is more than max_item, {most} bytes")
            result = _measure(path, Path(name), args)
        finally:
            children.end_all()
            mpqueue.destroy(path)
    if args.json:
        common.print_json(result)
        return common.OK
    common.table([(key.replace("_", " "), value) for key, value in result.items()])
    return common.OK


def _measure(path: str, work: Path, args: argparse.Namespace) -> dict[str, Any]:
    import mpqueue

    consumer = children.start(_consume, path, work / "consumer")
    with children.StartLine() as line:
        load = (line, args.size, args.batch, args.seconds)
        producers = [
            children.start(_produce, path, work / f"producer-{index}", *load)
            for index in range(args.producers)
        ]
        line.let_go(producers, START_TIMEOUT)
    started = time.monotonic()
    _wait_for(producers, [consumer])
    put_seconds = time.monotonic() - started
    with mpqueue.Queue(path, create=False) as queue:
        queue.seal()
    _wait_for([consumer], [])
    seconds = time.monotonic() - started
    with mpqueue.Queue(path, create=False) as queue:
        stats = queue.stats()
    taken = json.loads((work / "consumer").read_text())["items"]
    puts = [json.loads((work / f"producer-{n}").read_text()) for n in range(args.producers)]
    items = sum(put["items"] for put in puts)
    times = sorted(value for put in puts for value in put["times"])

    def at(share: float) -> float:
        nanoseconds = float(times[min(len(times) - 1, int(share * len(times)))])
        return round(nanoseconds / 1e3, 1)

    return {
        "producers": args.producers,
        "size": args.size,
        "batch": args.batch,
        "durability": args.durability[0],
        "seconds": round(put_seconds, 3),
        "put_items_per_second": round(items / put_seconds),
        "put_megabytes_per_second": round(items * args.size / put_seconds / 1e6, 1),
        "through_items_per_second": round(taken / seconds),
        "put_p50_us": at(0.5),
        "put_p99_us": at(0.99),
        "put_max_us": at(1.0),
        "flushes": stats.sync_duration_seconds.count,
        "takeovers": stats.lock_takeovers,
        "machine": f"{os.cpu_count()} cpus, Linux {platform.release()}",
        "python": platform.python_version(),
    }


def _wait_for(processes: list[BaseProcess], others: list[BaseProcess]) -> None:
    """Until all of `processes` have ended; WorkerFailed when any, also of the others, failed."""
    while pending := [process for process in processes if process.exitcode is None]:
        wait([process.sentinel for process in (*pending, *others)])
        children.check([*processes, *others], "process")
    children.check([*processes, *others], "process")


def _produce(
    path: str, out: Path, line: children.StartLine, size: int, batch: int, seconds: float
) -> None:
    """Puts until the time is over; each put is timed and a sample of the times kept."""
    import mpqueue

    body = os.urandom(size)
    bodies = [body] * batch
    times = []
    items = 0
    clock = time.perf_counter_ns
    parent = os.getppid()
    with mpqueue.Queue(path, create=False) as queue:
        line.wait()
        end = clock() + int(seconds * 1e9)
        while (now := clock()) < end and os.getppid() == parent:
            if batch == 1:
                queue.put(body)
            else:
                queue.put_many(bodies, atomic=False)
            times.append(clock() - now)
            items += batch
    step = len(times) // 20000 + 1
    kept = times[::step]
    kept.append(max(times, default=0))
    out.write_text(json.dumps({"items": items, "times": kept}))


def _consume(path: str, out: Path) -> None:
    """Takes everything until the queue is sealed and drained."""
    import mpqueue

    parent = os.getppid()
    items = 0
    with mpqueue.Queue(path, create=False) as queue, queue.consumer(wait=30) as consumer:
        while os.getppid() == parent:
            try:
                batch = consumer.reserve_many(1000, timeout=1.0)
            except mpqueue.Sealed:
                break
            consumer.ack_many(batch)
            items += len(batch)
    out.write_text(json.dumps({"items": items}))
