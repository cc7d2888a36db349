"""A disk that dies at a chosen call of `mpqueue.logging.marked`, and what it may hold afterwards.

The module's `os` is replaced by a `Disk`, which passes every call on to real files and counts those
that change something. At the chosen one it raises `Death`: before it, after it, or half-way through
a write. That is a kill. `cut_power()` then takes back what was not flushed: each file's bytes since
its last flush, and names given since the directory's, each of them or not. Inodes stay what they
are, since a mark names one: a link to every file is kept in a directory beside.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = ("open", "write", "pwrite", "ftruncate", "replace", "fdatasync", "fsync")


class Death(BaseException):
    """The process ended here."""


class Disk:
    """Stands for the module `os`; files live in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "log"
        self._keep = directory / "keep"
        self.directory.mkdir()
        self._keep.mkdir()
        self._durable: dict[int, bytes] = {}
        self._names: dict[str, int] = {}  # as of the last flush of the directory
        self._pending: list[Callable[[dict[str, int]], None]] = []
        self.arm(0, "before")

    def arm(self, at: int, mode: str) -> None:
        """Die at step number `at` (0: never); mode is before, half or after."""
        self.count, self._at, self._mode = 0, at, mode

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return real if name not in STEPS else lambda *args: self.step(name, real, args)

    def step(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """One call that changes something."""
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args)
        self.count += 1
        dies = self.count == self._at
        if dies and self._mode == "before":
            raise Death
        if dies and self._mode == "half":
            if name in ("write", "pwrite", "ack"):
                real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
            raise Death
        made = name == "open" and not os.path.exists(args[0])
        result = None if name in ("fdatasync", "fsync") else real(*args)
        if made:
            self._created(args[0], result)
        elif name == "replace":
            self._renamed(os.path.basename(args[0]), os.path.basename(args[1]))
        elif name == "fdatasync":
            self._durable[os.fstat(args[0]).st_ino] = self._content(os.fstat(args[0]).st_ino)
        elif name == "fsync":
            self._names = self._live_names()
            self._pending.clear()
        if dies:
            raise Death
        return result

    def _created(self, path: str, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        os.link(path, self._keep / str(inode))
        self._durable[inode] = b""
        name = os.path.basename(path)
        self._pending.append(lambda names: names.update({name: inode}))

    def _renamed(self, old: str, new: str) -> None:
        def apply(names: dict[str, int]) -> None:
            if old in names:
                names[new] = names.pop(old)

        self._pending.append(apply)

    def _content(self, inode: int) -> bytes:
        return (self._keep / str(inode)).read_bytes()

    def flushed(self, path: Path) -> bytes:
        """What of a file is on the disk for certain."""
        return self._durable[path.stat().st_ino]

    def _live_names(self) -> dict[str, int]:
        return {name: (self.directory / name).stat().st_ino for name in os.listdir(self.directory)}

    def cut_power(self, rng: random.Random) -> None:
        """Leaves what a power cut may leave now; the first state is: nothing that was not flushed.

        Everything that is there afterwards is durable.
        """
        least = rng.random() < 0.3
        names = dict(self._names)
        for operation in self._pending:
            if not least and rng.random() < 0.5:
                operation(names)
        for inode, old in self._durable.items():
            new = self._content(inode)
            if not least and new != old:
                # A length between the two; each 512 bytes old or new, or zeros beyond the old end.
                least_size, most = sorted((len(old), len(new)))
                size = rng.choice([len(old), len(new), rng.randint(least_size, most)])
                mixed = bytearray(old[:size].ljust(size, b"\0"))
                for start in range(0, size, 512):
                    if rng.random() < 0.5:
                        mixed[start : start + 512] = new[start : min(size, start + 512)]
                old = bytes(mixed)
            (self._keep / str(inode)).write_bytes(old)  # in place: the inode stays
            self._durable[inode] = old
        for name in os.listdir(self.directory):
            (self.directory / name).unlink()
        for name, inode in names.items():
            os.link(self._keep / str(inode), self.directory / name)
        self._names = names
        self._pending.clear()
