"""`mpqueue bench`: put and consume rates of this machine, and how long one put takes."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="where to make the queue (default: temporary)"
    )
    parser.add_argument("--producers", type=common.whole, default=2, metavar="N")
    parser.add_argument("--size", type=common.size, default=256, metavar="B", help="bytes an item")
    parser.add_argument(
        "--batch", type=common.whole, default=1, metavar="N", help="items a put (default: 1)"
    )
    parser.add_argument(
        "--durability", type=common.durability, default=("group", None), metavar="D"
    )
    parser.add_argument("--seconds", type=common.duration, default=3.0, metavar="S")
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Makes a queue, loads it, prints the rates, removes it."""
    import mpqueue

    with tempfile.TemporaryDirectory(prefix="mpqueue-bench-") as name:
        path = args.path or str(Path(name) / "queue")
        if os.path.exists(os.path.join(path, "meta")):
            raise common.UsageError(f"{path} is a queue already: bench wants one of its own")
        options = common.option_values({"durability": args.durability})
        mpqueue.Queue(path, **options).close()
        try:
            result = _measure(path, Path(name), args)
        finally:
            mpqueue.destroy(path)
    if args.json:
        common.print_json(result)
        return common.OK
    common.table([(key.replace("_", " "), value) for key, value in result.items()])
    return common.OK


def _measure(path: str, work: Path, args: argparse.Namespace) -> dict[str, Any]:
    import mpqueue

    context = multiprocessing.get_context("fork")
    gate = context.Barrier(args.producers + 1)
    consumer = context.Process(target=_consume, args=(path, work / "consumer"))
    producers = [
        context.Process(
            target=_produce,
            args=(path, work / f"producer-{index}", gate, args.size, args.batch, args.seconds),
        )
        for index in range(args.producers)
    ]
    try:
        for process in (consumer, *producers):
            process.start()
        gate.wait(60)
        started = time.monotonic()
        for process in producers:
            process.join()
        put_seconds = time.monotonic() - started
        with mpqueue.Queue(path, create=False) as queue:
            queue.seal()
        consumer.join()
        seconds = time.monotonic() - started
        with mpqueue.Queue(path, create=False) as queue:
            stats = queue.stats()
    finally:
        for process in (consumer, *producers):
            if process.exitcode is None:
                process.kill()
                process.join()
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


def _produce(path: str, out: Path, gate: Any, size: int, batch: int, seconds: float) -> None:
    """Puts until the time is over; each put is timed and a sample of the times kept."""
    import mpqueue

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    body = os.urandom(size)
    bodies = [body] * batch
    times = []
    items = 0
    clock = time.perf_counter_ns
    with mpqueue.Queue(path, create=False) as queue:
        gate.wait(60)
        end = clock() + int(seconds * 1e9)
        while (now := clock()) < end:
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

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    items = 0
    with mpqueue.Queue(path, create=False) as queue, queue.consumer(wait=30) as consumer:
        while True:
            try:
                batch = consumer.reserve_many(1000, timeout=1.0)
            except mpqueue.Sealed:
                break
            consumer.ack_many(batch)
            items += len(batch)
    out.write_text(json.dumps({"items": items}))
