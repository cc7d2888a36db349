"""What every benchmark shares: processes and their start, interleaved rounds, medians, table, JSON.

A benchmark compares *systems* (see systems.py). Each runs in processes of its own that have opened
everything before the clock starts: a barrier releases them together. Systems run in turn inside
each round, so that a slow minute of the machine hits all of them, and a ratio is taken round by
round: the figure is the median of the ratios, its spread their minimum and maximum.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from systems import System

CALIBRATION_ITEMS = 300
ITEMS_MAX = 4_000_000
CONTEXT = multiprocessing.get_context("fork")


@dataclass
class Options:
    """What a run of a benchmark may be told."""

    directory: Path  # scratch space, on the filesystem to be measured
    rounds: int = 9
    seconds: float = 0.6  # target length of one measured run


@dataclass
class Row:
    """One measured system: rates in items per second, one a round."""

    name: str
    rates: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


@dataclass
class Figure:
    """One number with its spread, and what it is compared with where there is a target."""

    key: str  # stable name: run_all's table of targets refers to it
    what: str
    values: list[float]
    unit: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass
class Report:
    """What one benchmark found out."""

    title: str
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def ratio(self, key: str, what: str, ours: str, theirs: str) -> None:
        """Adds the figure ours / theirs (rates, round by round) when both were measured."""
        found = {row.name: row for row in self.rows}
        if ours in found and theirs in found:
            pairs = zip(found[ours].rates, found[theirs].rates, strict=True)
            self.figures.append(Figure(key, what, [a / b for a, b in pairs], "x"))


# ---- the machine ---------------------------------------------------------------------------------


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that `path` lies on, as the kernel names it."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def machine(directory: Path) -> dict[str, Any]:
    """Where the numbers come from: without it they mean nothing."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "filesystem": filesystem_of(directory.resolve()),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def refuse_debug_build() -> None:
    """Ends the program when the native module was built with assertions."""
    native = importlib.import_module("mpqueue._native")
    if getattr(native, "DEBUG", False):
        sys.exit(
            "benchmarks: this mpqueue is a debug build; install a release build: pip install ."
        )


# ---- running -------------------------------------------------------------------------------------


def _worker(
    steps: Callable[[], Iterator[None]], barrier: Any, results: Any, directory: str
) -> None:
    os.chdir(directory)
    run = steps()
    next(run)  # opened
    barrier.wait()
    begun = time.monotonic()
    next(run)  # the measured loop
    results.put((begun, time.monotonic()))
    for _ in run:  # closing is not measured
        pass


def timed(roles: Sequence[Callable[[], Iterator[None]]], directory: Path) -> float:
    """Seconds from the common start of the roles, one process each, to the end of the last."""
    barrier = CONTEXT.Barrier(len(roles))
    results = CONTEXT.SimpleQueue()
    workers = [
        CONTEXT.Process(target=_worker, args=(role, barrier, results, str(directory)))
        for role in roles
    ]
    for worker in workers:
        worker.start()
    spans: list[tuple[float, float]] = []
    while len(spans) < len(workers):
        if results.empty() and any(worker.exitcode not in (None, 0) for worker in workers):
            for worker in workers:
                worker.kill()
            raise RuntimeError("a benchmark process failed; its error is above")
        if results.empty():
            time.sleep(0.01)
        else:
            spans.append(results.get())
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(begun for begun, _ in spans)


def run_once(system: System, producers: int, consumers: int, items: int, scratch: Path) -> float:
    """Items per second of one run: `consumers` is 0, or 1; producers 0 means put and get in one."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    try:
        system.prepare(directory)
        share = max(1, items // max(1, producers) // system.step) * system.step
        roles: list[Callable[[], Iterator[None]]] = []
        if producers == 0:
            roles.append(lambda: system.cycle(share))
        for _ in range(producers):
            roles.append(lambda: system.push(share))
        if consumers:
            roles.append(lambda: system.pull(share * producers))
        seconds = timed(roles, directory)
        return share * max(1, producers) / seconds
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def interleave(
    systems: Sequence[System], options: Options, *, producers: int, consumers: int
) -> list[Row]:
    """Measures the systems in turn, `options.rounds` times, each run about options.seconds long."""
    count: dict[str, int] = {}
    for system in systems:
        items = CALIBRATION_ITEMS * max(1, producers)
        while True:
            rate = run_once(system, producers, consumers, items, options.directory)
            if items / rate >= options.seconds / 4 or items >= ITEMS_MAX:
                break
            items *= 4
        count[system.name] = min(ITEMS_MAX, int(rate * options.seconds))
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    for turn in range(options.rounds):
        for system in (systems, list(reversed(systems)))[turn % 2]:
            rate = run_once(system, producers, consumers, count[system.name], options.directory)
            rates[system.name].append(rate)
    return [Row(system.name, rates[system.name], system.note) for system in systems]


def available(*systems: System) -> list[System]:
    """Those whose package is installed; the others are named on stderr."""
    kept = []
    for system in systems:
        if system.package is None or importlib.util.find_spec(system.package) is not None:
            kept.append(system)
        else:
            print(f"not installed, left out: {system.name}", file=sys.stderr)
    return kept


# ---- showing -------------------------------------------------------------------------------------


def show(report: Report) -> None:
    """Prints a report as an aligned table."""
    print(f"\n{report.title}")
    for row in report.rows:
        low, high = min(row.rates), max(row.rates)
        each = 1e6 / row.median
        spread = f"{low:,.0f} .. {high:,.0f}"
        print(f"  {row.name:36} {row.median:>12,.0f}/s {each:>10.2f} us  [{spread}]  {row.note}")
    for figure in report.figures:
        low, high = min(figure.values), max(figure.values)
        print(f"  {figure.what:50} {figure.median:>9.2f} {figure.unit}  [{low:.2f} .. {high:.2f}]")


def as_json(reports: Sequence[Report], options: Options) -> dict[str, Any]:
    """The reports as plain data: every single rate, not only the medians."""
    return {
        "machine": machine(options.directory),
        "rounds": options.rounds,
        "reports": [asdict(report) for report in reports],
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="also write every rate to FILE")
    made.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    made.add_argument("--seconds", type=float, default=0.6, help="of one run (default 0.6)")
    made.add_argument(
        "--dir", type=Path, help="where queues are made (default: build/ of this tree)"
    )
    return made


def scratch(arguments: argparse.Namespace) -> Options:
    """Options with a fresh scratch directory; remove it with discard()."""
    parent = arguments.dir or Path(__file__).resolve().parent.parent / "build"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    return Options(directory, arguments.rounds, arguments.seconds)


def discard(options: Options) -> None:
    """Removes the scratch directory."""
    shutil.rmtree(options.directory, ignore_errors=True)


def main(description: str | None, measure: Callable[[Options], Sequence[Report]]) -> None:
    """The main program of one benchmark."""
    arguments = parser(description).parse_args()
    refuse_debug_build()
    options = scratch(arguments)
    try:
        print("  ".join(f"{key}: {value}" for key, value in machine(options.directory).items()))
        reports = measure(options)
        for report in reports:
            show(report)
        if arguments.json:
            arguments.json.write_text(json.dumps(as_json(reports, options), indent=1) + "\n")
    finally:
        discard(options)
