"""Append-only text files in which processes record what they were told, one fact a line.

A line is written by one system call, so a SIGKILL leaves whole lines, at worst one cut short at
the end, which readers drop: a fact that was not recorded is not claimed.

    producer-<id>    a <n> <count> <first seq>     put of n .. n+count-1 returned
    cli-<id>         <seq>                         from `mpqueue put --print-seq`, in order of n
    consumer-<id>    r <ns>                        got the consumer role
                     d <ns> <seq> <attempts> <producer> <n>   delivered (producer -1: altered)
                     n <ns> <seq>                  about to be nacked
                     k <ns> <seq>                  its ack returned
    boots            b <ns>                        all processes were dead, the boot id changed

Times are CLOCK_MONOTONIC in nanoseconds, which all processes share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class Ledger:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, lines: str) -> None:
        """Appends whole lines, each with its newline."""
        os.write(self._fd, lines.encode())


def read(path: Path) -> Iterator[list[str]]:
    """The fields of each whole line."""
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield line.split()
