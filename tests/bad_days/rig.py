"""What the tests of bad days share: fingerprints, children with a line protocol, mounts.

Nothing here sleeps to synchronise: children say on a pipe where they are, and `until` polls a
condition that another process brings about. A rig that a machine cannot give (root, loop devices,
namespaces) skips the test with its reason, or fails it where MPQ_REQUIRE_RIG=1 promises the rig.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest

import mpqueue

PATIENCE = 60.0
"""Seconds after which a child counts as hung; no test expects to come near it."""


def fingerprint(path: Path) -> str:
    """One hash over names, kinds, modes, sizes, inodes and bytes of everything under `path`."""
    digest = hashlib.sha256()
    for entry in sorted([path, *path.rglob("*")]):
        found = entry.lstat()
        digest.update(repr((os.fsencode(entry), found.st_mode, found.st_ino)).encode())
        if entry.is_file() and not entry.is_symlink():
            digest.update(b"%d" % found.st_size + entry.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def untouched(path: Path) -> Iterator[None]:
    """What happens inside must leave every byte, name and mode under `path` as it was."""
    before = fingerprint(path)
    yield
    assert fingerprint(path) == before


def make(path: Path, bodies: list[bytes], **options: object) -> None:
    """A closed queue with these items, in small segments unless told."""
    with mpqueue.Queue(path, **{"segment_size": 1 << 16, **options}) as q:
        for body in bodies:
            q.put(body)


def drain(path: Path) -> list[bytes]:
    """Opens the queue, takes and acks everything that is ready, and closes it."""
    with mpqueue.Queue(path, create=False) as q, q.consumer() as c:
        return [item.body for item in c.drain()]


def advises(error: BaseException, path: Path | None, *words: str) -> None:
    """The message names the path and says what to do, in these words (regular expressions)."""
    text = str(error)
    if path is not None:
        assert str(path) in text
    for word in words:
        assert re.search(word, text), f"{word!r} is not in {text!r}"


def until(condition: Callable[[], object]) -> None:
    """Polls until the condition holds; fails after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)


def no_rig(reason: str) -> NoReturn:
    """Skips, or fails where the machine promised the rig."""
    if os.environ.get("MPQ_REQUIRE_RIG") == "1":
        pytest.fail(f"MPQ_REQUIRE_RIG=1, but {reason}")
    pytest.skip(reason)


def need_root() -> None:
    """The test changes user, mounts or makes namespaces."""
    if os.geteuid() != 0:
        no_rig("this needs root")


def need_tool(name: str) -> str:
    """The path of a system tool."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        no_rig(f"there is no {name} here")
    return found


def in_other_shm(setup: str = "mount -t tmpfs t /dev/shm") -> tuple[str, ...]:
    """Prefix of a command: runs it in a mount namespace whose /dev/shm is something else."""
    need_root()
    return (need_tool("unshare"), "-m", "sh", "-c", f'{setup} && exec "$0" "$@"')


# ---- children


class Child:
    """A Python process that runs a script and talks in lines: `say(...)` there, `hear()` here.

    The script finds `say`, `listen`, `mpqueue`, `os`, `sys`, `errno` and its arguments as `args`.
    """

    _PRELUDE = """
import errno, os, sys
import mpqueue
mpqueue.Queue  # loads the rest now, while there are descriptors and memory for it
args = [os.fsencode(text) for text in sys.argv[1:]]
def say(*words):  # whole or not at all, whenever it is killed
    os.write(1, os.fsencode(" ".join(map(str, words))) + b"\\n")
def listen():
    return sys.stdin.readline().strip()
"""

    def __init__(
        self,
        script: str,
        *arguments: object,
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        command = [*prefix, sys.executable, "-P", "-W", "error", "-c"]
        self.process = subprocess.Popen(
            [*command, self._PRELUDE + textwrap.dedent(script), *(_word(a) for a in arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """The next line it says; fails when it hangs, "" when it ended."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        return line.strip()

    def tell(self, line: str = "") -> None:
        """Lets its listen() return."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and it is gone when this returns."""
        self.process.kill()
        self.process.wait()

    def ends(self, status: int = 0) -> None:
        """It ends by itself, with this status: not by a signal, not after a watchdog."""
        try:
            assert self.process.wait(PATIENCE) == status
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # the fault handler shows where it hangs
            self.process.wait()
            pytest.fail("a child hangs")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _word(argument: object) -> str:
    if isinstance(argument, (bytes, os.PathLike)):
        return os.fsdecode(argument)
    return str(argument)


def run(script: str, *arguments: object, **how: object) -> list[str]:
    """Runs a child to its end and returns the lines that it said."""
    with Child(script, *arguments, **how) as child:  # type: ignore[arg-type]
        lines = []
        while line := child.hear():
            lines.append(line)
        child.ends()
    return lines


def remove(directory: Path) -> None:
    """Deletes a queue from under whoever works in it, and comes and goes there with files."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


# ---- mounts

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2); a refusal of the kernel is a missing rig."""
    names = (source.encode(), os.fsencode(target), kind.encode())
    if _libc.mount(*names, ctypes.c_ulong(flags), data.encode()) != 0:
        no_rig(f"cannot mount {kind}: {os.strerror(ctypes.get_errno())}")


def unmount(target: Path) -> None:
    """Takes it out of the tree at once, whoever still uses it."""
    _libc.umount2(os.fsencode(target), 2)  # MNT_DETACH


@contextlib.contextmanager
def tmpfs(target: Path, size: int) -> Iterator[Path]:
    """A tmpfs of `size` bytes at `target`."""
    need_root()
    target.mkdir()
    mount("tmpfs", target, "tmpfs", data=f"size={size}")
    try:
        yield target
    finally:
        unmount(target)


@contextlib.contextmanager
def small_ext4(directory: Path, size: int) -> Iterator[Path]:
    """An ext4 filesystem of `size` bytes in a file, mounted through a loop device."""
    need_root()
    image, target = directory / "image", directory / "small"
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([need_tool("mkfs.ext4"), "-qF", "-m", "0", str(image)], check=True)
    target.mkdir()
    done = subprocess.run(
        [need_tool("mount"), "-o", "loop", str(image), str(target)], capture_output=True, text=True
    )
    if done.returncode != 0:
        no_rig(f"cannot mount through a loop device: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run([need_tool("umount"), "-l", str(target)], check=True)
