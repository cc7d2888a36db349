"""Goal: who holds a lock and does not go on is waited for, named, and never overrun.

Method: a process is stopped with SIGSTOP at an instant at which it holds the header lock, as the
owner word in control shows; and a lock byte of meta is held by this test where only an open file
description lock can stand for a process in the middle of opening.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue import layout

_OWNER = """
import sys, mpqueue
q = mpqueue.Queue(sys.argv[1], create=False)
print(q.incarnation, flush=True)
batch = [b""] * 4000  # claimed in one hold of the lock
while True:
    q.put_many(batch)
"""

_VICTIM = """
import signal, sys, mpqueue
q = mpqueue.Queue(sys.argv[1], create=False)
print("ready", flush=True)
try:
    q.put(b"victim", timeout=3600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.read()
"""


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    return open_queue(durability="none", segment_size=1 << 23, max_segments=1 << 12)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def owner(q: mpqueue.Queue, processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """A process that is stopped and holds the header lock."""
    process = _start(_OWNER, q.path)
    processes.append(process)
    incarnation = int(_hear(process))
    with (
        open(Path(q.path) / "control", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as control,
    ):
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            (word,) = struct.unpack_from("<Q", control, layout.CONTROL.offset("owner"))
            if word >> 1 == incarnation:
                return process
            os.kill(process.pid, signal.SIGCONT)


@pytest.mark.crash
def test_lock_timeout_names_the_stopped_owner(
    q: mpqueue.Queue, owner: subprocess.Popen[str]
) -> None:
    depth = len(q)
    for call in (
        lambda: q.put(b"x", timeout=0.01),
        lambda: q.put(b"x", block=False),
        lambda: q.put_nowait(b"x"),
        lambda: q.put_many([b"x", b"y"], timeout=0.01),
        lambda: q.put_many([b"x", b"y"], atomic=False, timeout=0),
    ):
        with pytest.raises(mpqueue.LockTimeout) as caught:
            call()
        assert caught.value.pid == owner.pid
        assert f"process {owner.pid}," in str(caught.value)
        assert caught.value.accepted == 0
    assert len(q) == depth
    assert q.stats().lock_waits > 0
    assert q.stats().lock_wait_max_seconds > 0
    assert q.stats().lock_takeovers == 0
    if depth:  # who consumes needs no lock
        with q.consumer() as c, c.reserve() as item:
            assert item.body == b""
    os.kill(owner.pid, signal.SIGCONT)
    seq = q.put(b"goes on")
    assert seq > depth
    assert owner.poll() is None
    assert q.stats().lock_takeovers == 0


@pytest.mark.crash
@pytest.mark.parametrize(
    "call",
    [
        "q.put_nowait(b'now')",
        "q.put(b'now', timeout=0)",
        "q.put(b'now', block=False)",
        "q.put_many([b'now'], timeout=0)",
        "q.put_many([b'now'], timeout=0, atomic=False)",
    ],
)
def test_a_call_that_must_not_wait_lets_a_slow_owner_finish(
    q: mpqueue.Queue,
    owner: subprocess.Popen[str],
    processes: list[subprocess.Popen[str]],
    call: str,
) -> None:
    """Broken once: four busy producers met LockTimeout from put_nowait, and nobody was stopped."""
    waits = q.stats().lock_waits
    caller = _start(f"import sys, mpqueue\nq = mpqueue.Queue(sys.argv[1])\n{call}", q.path)
    processes.append(caller)
    while q.stats().lock_waits < waits + 2:  # it has looked again after its first sleep
        assert caller.poll() is None
    owner.send_signal(signal.SIGCONT)
    assert caller.wait() == 0
    owner.kill()
    with q.consumer() as c:
        assert [item.body for item in c.drain() if item.body] == [b"now"]


@pytest.mark.crash
def test_ctrl_c_and_sigcont_while_the_lock_is_held(
    q: mpqueue.Queue, owner: subprocess.Popen[str], processes: list[subprocess.Popen[str]]
) -> None:
    for number in (signal.SIGINT, signal.SIGCONT):
        victim = _start(_VICTIM, q.path)
        processes.append(victim)
        assert _hear(victim) == "ready"
        waits = q.stats().lock_waits
        while q.stats().lock_waits < waits + 3:
            assert victim.poll() is None
        if number == signal.SIGINT:
            victim.send_signal(signal.SIGINT)
            assert _hear(victim) == "interrupted"
        else:
            owner.send_signal(signal.SIGCONT)
            owner.kill()  # or the disk fills up
            assert victim.stdin is not None
            victim.stdin.close()
            assert _hear(victim) == ""
            assert victim.wait() == 0
    q.put(b"end")
    with q.consumer() as c:
        bodies = [item.body for item in c.drain() if item.body]
    assert bodies == [b"victim", b"end"]


@pytest.mark.crash
def test_lock_of_a_killed_owner_is_taken_over_and_told_once(
    q: mpqueue.Queue, owner: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    owner.kill()
    owner.wait()
    q.put(b"x")
    q.put(b"y")
    q.flush()
    assert q.stats().lock_takeovers == 1
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{q.path}: the header lock was taken over from a dead process"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with q.consumer() as c:
        assert [item.body for item in c.drain() if item.body] == [b"x", b"y"]
    assert len(q) == 0


@pytest.mark.crash
@pytest.mark.slow
def test_long_wait_for_the_lock_is_told_once_and_names_the_owner(
    q: mpqueue.Queue, owner: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(mpqueue.LockTimeout):
        q.put(b"x", timeout=10.5)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"more than 10 s for the header lock, held by process {owner.pid}" in record.getMessage()
    assert q.stats().lock_wait_max_seconds > 10


# ---- opening


def _lock_gate(file: int, kind: int) -> None:
    gate = struct.pack("hhqqi4x", kind, os.SEEK_SET, layout.BYTE_GATE, 1, 0)
    fcntl.fcntl(file, 37, gate)  # F_OFD_SETLK


_OPENER = """
import signal, sys, mpqueue
if len(sys.argv) > 2:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print("ready", flush=True)
try:
    with mpqueue.Queue(sys.argv[1], create=False) as q:
        print("opened", q.put(b"x"), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("storm", [(), ("storm",)], ids=["quiet", "storm"])
def test_open_waits_at_the_gate_and_can_be_interrupted(
    q: mpqueue.Queue, processes: list[subprocess.Popen[str]], storm: tuple[str, ...]
) -> None:
    members = q.stats().members_alive
    with open(Path(q.path) / "meta", "r+b") as meta:
        _lock_gate(meta.fileno(), fcntl.F_WRLCK)
        for _ in range(2):
            processes.append(_start(_OPENER, q.path, *storm))
            assert _hear(processes[-1]) == "ready"
        first, second = processes
        while Path(f"/proc/{first.pid}/stat").read_text().split()[2] != "S":
            assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert _hear(first) == "interrupted"
        assert q.stats().members_alive == members
        _lock_gate(meta.fileno(), fcntl.F_UNLCK)
        assert _hear(second) == "opened 1"
    assert first.poll() is None
    assert q.put(b"y") == 2


@pytest.mark.crash
@pytest.mark.parametrize("call", ["put", "put_many", "seal", "set_options"])
def test_close_ends_a_wait_for_the_stopped_owner(
    q: mpqueue.Queue, owner: subprocess.Popen[str], call: str
) -> None:
    calls = {
        "put": lambda: q.put(b"x"),
        "put_many": lambda: q.put_many([b"x", b"y"]),
        "seal": q.seal,
        "set_options": lambda: q.set_options(retain=1.0),
    }
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            calls[call]()
        except BaseException as error:
            outcome.append(error)

    before = q.stats().lock_waits
    thread = threading.Thread(target=wait)
    thread.start()
    while q.stats().lock_waits < before + 2:
        assert not outcome
    q.close()
    thread.join()
    assert isinstance(outcome[0], mpqueue.Closed)
    assert owner.poll() is None
