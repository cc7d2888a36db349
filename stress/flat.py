"""Flatness: what a long-lived process of a queue holds does not grow with what others do.

Samples are taken from outside: descriptors, mappings and resident memory of a process, entries of
the queue's directory. The medians of the two halves of a run are compared, because a crowd of
processes that prepare a segment at the same time is a peak and not growth; the slack allows for a
segment or two.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median_low

SLACK = {"descriptors": 4, "mappings": 12, "resident KiB": 12_288, "files": 8}
_SAMPLES_AT_LEAST = 8


def sample(pid: int) -> dict[str, int]:
    """What a living process holds now; empty when it is gone."""
    process = Path(f"/proc/{pid}")
    try:
        status = (process / "status").read_text()
        return {
            "descriptors": len(os.listdir(process / "fd")),
            "mappings": len((process / "maps").read_text().splitlines()),
            "resident KiB": int(status.partition("VmRSS:")[2].split()[0]),
        }
    except (OSError, IndexError):
        return {}


def sample_queue(queue: Path) -> dict[str, int]:
    """How many entries the queue's directory has."""
    return {"files": len(os.listdir(queue))}


class Flatness:
    """Samples of one thing over time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[dict[str, int]] = []

    def add(self, values: dict[str, int]) -> None:
        """Takes a sample; an empty one counts as none."""
        if values:
            self.samples.append(values)

    def typical(self) -> dict[str, tuple[int, int]]:
        """The medians of both halves; the first eighth is warming up."""
        warm = self.samples[len(self.samples) // 8 :]
        first, second = warm[: len(warm) // 2], warm[len(warm) // 2 :]
        return {
            name: (median_low(s[name] for s in first), median_low(s[name] for s in second))
            for name in warm[0]
        }

    def complaints(self) -> list[str]:
        """What grew, in words."""
        if len(self.samples) < _SAMPLES_AT_LEAST:
            return [f"{self.name}: only {len(self.samples)} samples"]
        return [
            f"{self.name}: {name} grew from {before} to {after}"
            for name, (before, after) in self.typical().items()
            if after > before + SLACK[name]
        ]

    def __str__(self) -> str:
        if len(self.samples) < _SAMPLES_AT_LEAST:
            return f"{self.name}: too few samples"
        values = (f"{name} {a} then {b}" for name, (a, b) in self.typical().items())
        return f"{self.name}: {', '.join(values)}"
