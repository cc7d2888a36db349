"""Runs every benchmark; writes results/<date>-<machine>.json and a table of figures and targets."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import durable
import harness
import idle_cpu
import one_process
import open_time
import outstanding
import throughput

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Target:
    """A figure that a release has to reach."""

    key: str  # of harness.Figure
    what: str
    bound: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


TARGETS = (
    Target("one-process/SimpleQueue", "put + reserve + ack / multiprocessing.SimpleQueue", 8),
    Target("1-to-1/multiprocessing.Queue", "1 -> 1, item by item / multiprocessing.Queue", 12),
    Target("1-to-1/pyzmq ipc", "1 -> 1, item by item / pyzmq ipc", 2),
    Target("4-to-1/multiprocessing.Queue", "4 -> 1, item by item / multiprocessing.Queue", 20),
    Target("4-to-1/pyzmq ipc", "4 -> 1, item by item / pyzmq ipc", 2),
    Target("batch/pyzmq ipc", "put_many(100), reserve_many(100), 1 -> 1 / pyzmq ipc", 5),
    Target("bare/preallocated", "time of sync / pwrite + fdatasync, preallocated", 1.25, False),
    Target("bare/growing file", "time of sync / pwrite + fdatasync, growing file", 1.25, False),
    Target("group-8-to-sync-1", "group, 8 producers / sync, 1 producer", 2.5),
    Target("group-to-sync/1", "group / sync, 1 producer each", 0.9),
    Target("group-to-sync/2", "group / sync, 2 producers each", 0.9),
    Target("cycle/group", "group, put + reserve + ack / persist-queue", 4),
    Target("cycle/sync", "sync, put + reserve + ack / persist-queue", 2),
    Target("open/same-boot", "open, 1,000,000 items, same boot (ms)", 20, False),
    Target("open/lost-boot", "open, 1,000,000 items, after a system crash (ms)", 500, False),
    Target("outstanding/reserve/lease/32000", "reserve past 32,000 leases (us)", 5, False),
    Target("idle/cpu", "blocked reserve (% of a core)", 0.5, False),
)


def markdown(reports: Sequence[harness.Report]) -> str:
    """The table of targets with what was measured: median, then the spread of the rounds."""
    found = {figure.key: figure for report in reports for figure in report.figures}
    lines = ["| figure | target | measured | |", "|---|---|---|---|"]
    for target in TARGETS:
        bound = f"{'>=' if target.at_least else '<='} {target.bound:g}"
        figure = found.get(target.key)
        if figure is None:
            lines.append(f"| {target.what} | {bound} | not measured | |")
            continue
        value, low, high = figure.median, min(figure.values), max(figure.values)
        verdict = "reached" if target.met(value) else "MISSED"
        lines.append(
            f"| {target.what} | {bound} | {value:.2f} ({low:.2f} .. {high:.2f}) | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs everything, which takes some minutes."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="e.g. one_process durable")
    arguments = parser.parse_args()
    harness.refuse_debug_build()
    options = harness.scratch(arguments)
    reports: list[harness.Report] = []
    try:
        facts = harness.machine(options.directory)
        print("  ".join(f"{key}: {value}" for key, value in facts.items()))
        for module in (one_process, throughput, durable, open_time, idle_cpu, outstanding):
            if arguments.only and module.__name__ not in arguments.only:
                continue
            for report in module.measure(options):
                harness.show(report)
                reports.append(report)
        data = harness.as_json(reports, options)
    finally:
        harness.discard(options)
    table = markdown(reports)
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"{facts['cpu']} {platform.machine()}".lower()).strip("-")
    stem = RESULTS / f"{facts['date']}-{name}"
    text = json.dumps(data, indent=1) + "\n"
    (arguments.json or stem.with_suffix(".json")).write_text(text)
    heading = ", ".join(f"{key} {value}" for key, value in facts.items())
    stem.with_suffix(".md").write_text(f"{heading}, {options.rounds} rounds\n\n{table}")
    print("\n" + table)


if __name__ == "__main__":
    main()
