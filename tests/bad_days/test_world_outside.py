"""Goal: what the machine does around a queue costs none of its promises.

Method: real processes in namespaces of their own, more of them than the table of members, a
filesystem whose device is full behind its back, a wall clock that steps, and a flush leader that
stands still (shim.c is loaded into children for the last two).
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mpqueue
from rig import Child, drain, need_root, need_tool, no_rig, run, tmpfs, until

HERE = Path(__file__).resolve().parent

# ---- namespaces

PRODUCE = """
import itertools
q = mpqueue.Queue(args[0], segment_size=65536, durability="none")
say("open", os.getpid())
for n in itertools.count():
    q.put(args[1] + b" %d" % n)
    say(n)
"""


def test_processes_of_several_namespaces_share_a_queue(tmp_path: Path) -> None:
    """Each is process 1 of its own world, with its own /dev/shm; two are killed in their puts."""
    need_root()
    path = tmp_path / "spool"
    words = ("--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--mount")
    apart = (
        need_tool("unshare"),
        *words,
        "sh",
        "-c",
        'mount -t tmpfs t /dev/shm && exec "$0" "$@"',
    )
    with mpqueue.Queue(path, segment_size=1 << 16, durability="none") as q, q.consumer() as c:
        with Child(PRODUCE, path, b"a", prefix=apart) as a, Child(PRODUCE, path, b"b") as b:
            with Child(PRODUCE, path, b"c", prefix=apart) as other:
                assert a.hear() == other.hear() == "open 1"
                assert b.hear() == f"open {b.pid}"
                children = {b"a": a, b"b": b, b"c": other}
                for child in children.values():
                    while int(child.hear()) < 200:
                        pass
                other.kill()
            heard = {name: int(child.hear()) for name, child in list(children.items())[:2]}
            a.kill()
            b.kill()
        got: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}
        for item in c.drain():
            name, number = item.body.split()
            got[name].append(int(number))
        for name, numbers in got.items():
            assert numbers == list(range(len(numbers))), name
            assert len(numbers) > heard.get(name, 200)
        until(lambda: q.stats().members_alive == 1)
        assert q.stats().lost_items == 0


# ---- many members

CROWD = """
import signal
q = mpqueue.Queue(args[0], durability="none")
reading, writing = os.pipe()
pids = []
for n in range(int(args[1])):
    pid = os.fork()
    if pid == 0:
        try:
            q.put(b"%d" % n)
            os.write(writing, b".")
            signal.pause()
        finally:
            os._exit(1)
    pids.append(pid)
seen = 0
while seen < len(pids):
    seen += len(os.read(reading, 4096))
say("all")
listen()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
say("dead")
listen()
"""


def test_a_thousand_members_and_more(tmp_path: Path) -> None:
    path, crowd = tmp_path / "spool", 1100
    with mpqueue.Queue(path, durability="none") as q, Child(CROWD, path, crowd) as child:
        assert child.hear() == "all"
        now = q.stats()
        assert now.depth == crowd
        assert len(q.members()) == q.options.max_members == 1024
        child.tell()
        assert child.hear() == "dead"
        until(lambda: q.stats().members_alive == 2)
        run("mpqueue.Queue(args[0]).put(b'next')", path)
        child.tell()
        child.ends()
    assert sorted(drain(path)) == sorted([b"next", *(b"%d" % n for n in range(crowd))])


# ---- a device that is full behind the filesystem

FILL = """
q = mpqueue.Queue(args[0], segment_size=1 << 20, durability="sync")
accepted = 0
try:
    while True:
        q.put(b"%08d" % accepted + bytes(32760))
        accepted += 1
except mpqueue.FlushFailed as error:
    say("refused", accepted, error.errno)
try:
    q.put(b"after")
except mpqueue.Poisoned:
    say("poisoned")
listen()
"""
LATER = """
q = mpqueue.Queue(args[0])
try:
    q.put(b"later")
except mpqueue.Poisoned:
    say("poisoned")
with q.consumer() as c:
    say(*(int(item.body[:8]) for item in c.reserve_many(100_000, timeout=0)))
"""


@contextmanager
def _thin(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 64 MiB on a device that can keep 24 of them."""
    target = tmp_path / "thin"
    target.mkdir()
    with tmpfs(tmp_path / "store", 24 << 20) as store:
        image = store / "image"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        options = ["-qF", "-m", "0", "-E", "lazy_itable_init=1", "-O", "^has_journal"]
        subprocess.run([need_tool("mkfs.ext4"), *options, str(image)], check=True)
        words = [need_tool("mount"), "-o", "loop,errors=continue", str(image), str(target)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            no_rig(f"cannot mount through a loop device: {done.stderr.strip()}")
        try:
            yield target
        finally:
            subprocess.run([need_tool("umount"), "-l", str(target)], check=True)


def test_a_device_that_takes_no_more_poisons_for_all_and_loses_nothing(tmp_path: Path) -> None:
    with _thin(tmp_path) as place:
        path = place / "spool"
        with Child(FILL, path) as child:
            words = child.hear().split()
            assert words[0] == "refused"
            accepted = int(words[1])
            assert accepted > 100
            assert child.hear() == "poisoned"
            lines = run(LATER, path)
            child.tell()
            child.ends()
        assert lines[0] == "poisoned"
        delivered = [int(word) for word in lines[1].split()]
        assert delivered[:accepted] == list(range(accepted))
        assert len(delivered) <= accepted + 1


# ---- under the shim


@pytest.fixture
def shim(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The file of its two words, and the environment that loads it."""
    compiler = shutil.which("cc")
    if compiler is None:
        no_rig("there is no C compiler")
    library, words = tmp_path / "shim.so", tmp_path / "words"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "shim.c")]
    subprocess.run(command, check=True)
    words.write_bytes(struct.pack("<qq", 0, -1))
    return words, {**os.environ, "LD_PRELOAD": str(library), "MPQ_SHIM": str(words)}


STEPS = """
import struct, time
DAY = 86400
def step(days):
    with open(args[1], "r+b") as file:
        file.write(struct.pack("<q", days * DAY))
bodies = []
for days in (0, 3, -3, 1, -30, 0):
    step(days)
    now = time.time()
    for policy in ("interval", "group"):
        with mpqueue.Queue(args[0], segment_size=65536, durability="group") as q:
            q.set_options(durability=policy)
            with q.consumer() as c:
                assert c.reserve(timeout=0.01) is None
                for n in range(50):
                    q.put(b"%d" % n)
                assert q.stats().oldest_ready_age_seconds >= 0
                step(days - 2)
                assert q.stats().oldest_ready_age_seconds >= 0
                q.put(b"50")
                item = c.reserve(timeout=60)
                assert abs(item.enqueued_at - now) < 60, item.enqueued_at
                item.ack(durable=True)
                bodies.append([item.body, *(item.body for item in c.drain())])
                assert c.reserve(timeout=0.01) is None
                step(days)
            q.set_options(durability="group")
say(all(got == [b"%d" % n for n in range(51)] for got in bodies), len(bodies))
"""


def test_a_clock_that_steps_changes_no_order_no_wait_and_no_age(
    tmp_path: Path, shim: tuple[Path, dict[str, str]]
) -> None:
    words, environment = shim
    path = tmp_path / "spool"
    assert run(STEPS, path, words, env=environment) == ["True 12"]
    with mpqueue.Queue(path) as q:
        now = q.stats()
        assert (now.depth, now.lost_items, now.items_acked) == (0, 0, 12 * 51)


PUT = """
q = mpqueue.Queue(args[0], segment_size=65536, durability=args[2].decode())
say("open")
while line := listen():
    q.put(line.encode())
    say("put")
"""


@pytest.mark.parametrize("durability", ["sync", "group"])
def test_a_flush_leader_that_stands_still_holds_nobody_up(
    tmp_path: Path, shim: tuple[Path, dict[str, str]], durability: str
) -> None:
    words, environment = shim
    path = tmp_path / "spool"
    arguments = (path, words, durability)
    with Child(PUT, *arguments, env=environment) as leader, Child(PUT, *arguments) as other:
        assert leader.hear() == other.hear() == "open"
        leader.tell("first")
        assert leader.hear() == "put"
        with words.open("r+b") as file:
            file.write(struct.pack("<qq", 0, 0))
        leader.tell("second")
        _, status = os.waitpid(leader.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        other.tell("third")
        assert other.hear() == "put"
        leader.signal(signal.SIGCONT)
        assert leader.hear() == "put"
        for child in (leader, other):
            child.tell()
            child.ends()
    assert drain(path) == [b"first", b"second", b"third"]
