"""Goal: the named semaphore may be missing, foreign or abused: it costs latency, never an item.

Method: four producers contend for one queue under policy none while the parent does something to
the semaphore again and again; every accepted item is delivered once, in order for each producer,
and nobody hangs. /dev/shm itself is taken away in mount namespaces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue import semaphore
from rig import Child, drain, in_other_shm, make, run

posix_ipc = pytest.importorskip("posix_ipc")

PRODUCERS = 4
ITEMS = 4000

PRODUCE = """
q = mpqueue.Queue(args[0])
say("open")
listen()
for n in range(int(args[2])):
    q.put(args[1] + b" %d" % n)
    if n % 500 == 0:
        say("at", n)
say("done")
listen()
q.close()
"""


def _unlink(name: str) -> None:
    semaphore.unlink(name)


def _replace(name: str) -> None:
    semaphore.unlink(name)
    semaphore.ensure(name, 0o600, "/")


def _drain(name: str) -> None:
    with contextlib.suppress(posix_ipc.ExistentialError):
        sem = posix_ipc.Semaphore(name)
        with contextlib.suppress(posix_ipc.BusyError):
            while True:
                sem.acquire(0)
        sem.close()


def _over_post(name: str) -> None:
    with contextlib.suppress(posix_ipc.ExistentialError):
        sem = posix_ipc.Semaphore(name)
        for _ in range(1000):
            sem.release()
        sem.close()


def _chmod(name: str) -> None:
    found = semaphore.inspect(name)
    if found is not None and found.file:
        os.chmod(found.file, 0)


def _garbage(name: str) -> None:
    found = semaphore.inspect(name)
    if found is not None and found.file:
        with open(found.file, "r+b") as file:
            file.write(os.urandom(4))


ABUSES: list[Callable[[str], None]] = [_unlink, _replace, _drain, _over_post, _chmod, _garbage]


@contextlib.contextmanager
def _producers(
    path: Path, prefix: tuple[str, ...] = (), count: int = PRODUCERS, items: int = ITEMS
) -> Iterator[list[Child]]:
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(PRODUCE, path, b"p%d" % p, items, prefix=prefix))
            for p in range(count)
        ]
        for child in children:
            assert child.hear() == "open"
        for child in children:
            child.tell()
        yield children


def _check(bodies: list[bytes], count: int = PRODUCERS, items: int = ITEMS) -> None:
    for p in range(count):
        mine = [int(body.split()[1]) for body in bodies if body.startswith(b"p%d " % p)]
        assert mine == list(range(items))
    assert len(bodies) == count * items


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda abuse: abuse.__name__.strip("_"))
def test_abused_semaphore_costs_no_item(
    open_queue: OpenQueue, spool: Path, abuse: Callable[[str], None]
) -> None:
    q = open_queue(durability="none")
    name = q.gate_name
    with _producers(spool) as children:
        abuse(name)
        for child in children:
            while child.hear() != "done":
                abuse(name)
        with q.consumer() as c:
            _check([item.body for item in c.drain()])
        for child in children:
            child.tell()
            child.ends()
    assert (len(q), q.stats().lost_items, q.stats().claim_gaps) == (0, 0, 0)
    # Whoever opens it next gets one that works, or does without.
    with mpqueue.Queue(spool) as again:
        again.put(b"x")
    semaphore.unlink(name)


def test_semaphore_is_made_again_by_the_next_open(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    semaphore.unlink(q.gate_name)
    assert semaphore.inspect(q.gate_name) is None
    q.put(b"x")
    open_queue()
    assert semaphore.inspect(q.gate_name) is not None


# ---- /dev/shm


SHMS = {
    "read only": "mount -t tmpfs -o ro t /dev/shm",
    "of one page": "mount -t tmpfs -o size=4k,nr_inodes=2 t /dev/shm && head -c 4096 /dev/zero "
    "> /dev/shm/filler",
    "proc instead": "mount -t proc p /dev/shm",
}


@pytest.mark.parametrize("shm", SHMS)
def test_missing_dev_shm_costs_no_item_and_is_said_once(tmp_path: Path, shm: str) -> None:
    path = tmp_path / "spool"
    prefix = in_other_shm(SHMS[shm])
    lines = run(
        """
import logging
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logging.getLogger("mpqueue").addHandler(Keep())
for _ in range(3):
    with mpqueue.Queue(args[0], durability="none") as q:
        q.put(b"x")
for text in records:
    say(text)
""",
        path,
        prefix=prefix,
    )
    warnings = [line for line in lines if "semaphore" in line]
    assert len(warnings) == 1
    assert "/dev/shm" in warnings[0]
    assert "mounted and writable" in warnings[0]
    with _producers(path, prefix, items=1000) as children:
        for child in children:
            while child.hear() != "done":
                pass
        for child in children:
            child.tell()
            child.ends()
    bodies = drain(path)
    assert bodies[:3] == [b"x"] * 3
    _check(bodies[3:], items=1000)


def test_semaphores_of_two_dev_shm_exclude_each_other_all_the_same(tmp_path: Path) -> None:
    """Half of the producers see another semaphore of the same name; the lock is still one lock."""
    path = tmp_path / "spool"
    make(path, [], durability="none", segment_size=1 << 20)
    prefix = in_other_shm()
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(PRODUCE, path, b"p%d" % p, ITEMS, prefix=prefix if p % 2 else ())
            )
            for p in range(PRODUCERS)
        ]
        for child in children:
            assert child.hear() == "open"
        for child in children:
            child.tell()
        for child in children:
            while child.hear() != "done":
                pass
            child.tell()
            child.ends()
    _check(drain(path))
