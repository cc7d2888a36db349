"""Goal: a signal ends or does not end a blocking call exactly as Python says, and costs nothing.

Method: a victim process makes one blocking call under a handler; this process waits until the
counters show that it sleeps, sends the signal, and sees how it ends. Afterwards the victim still
lives and holds nothing: this process goes on at once and finds every item.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue

# Ways to be woken: what the victim does about the signal, and what it must say afterwards.
HANDLERS = {
    "ctrl-c": ("SIGINT", "", "KeyboardInterrupt"),
    "exit": ("SIGTERM", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", "SystemExit"),
    "raise": ("SIGUSR1", "signal.signal(signal.SIGUSR1, raise_it)", "Interrupt"),
    "other thread": ("SIGUSR1", "signal.signal(signal.SIGUSR1, raise_it); divert()", "Interrupt"),
    "storm": ("SIGUSR1", "signal.signal(signal.SIGUSR1, raise_it); storm()", "Interrupt"),
}

# Blocking calls on a queue of capacity 2 that this process has filled, or emptied.
CALLS = {
    "put": ("full", "q.put(b'victim')"),
    "put with timeout": ("full", "q.put(b'victim', timeout=3600)"),
    "put_many": ("full", "q.put_many([b'victim', b'victim'])"),
    "put_many in parts": ("full", "q.put_many([b'victim'] * 3, atomic=False)"),
    "batch": ("full", "batch(q)"),
    "reserve": ("empty", "c.reserve()"),
    "reserve with timeout": ("empty", "c.reserve(3600)"),
    "reserve_many": ("empty", "c.reserve_many(3)"),
    "take": ("empty", "c.take()"),
    "wait": ("empty", "c.wait()"),
    "iteration": ("empty", "next(iter(c))"),
    "get": ("empty", "q.get()"),
    "standby": ("busy", "q.consumer(wait=3600)"),
    "standby for ever": ("busy", "q.consumer(wait=float('inf'))"),
    "join": ("full", "q.join()"),
}

_VICTIM = """
import os, signal, sys, threading
import mpqueue

class Interrupt(Exception):
    pass

def raise_it(*_):
    raise Interrupt

def divert():
    # The kernel gives the signal to a thread that runs no Python.
    ready = threading.Barrier(2)
    def other():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        ready.wait()
        threading.Event().wait()
    threading.Thread(target=other, daemon=True).start()
    ready.wait()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

def storm():
    # Harmless signals all the time: EINTR in every system call.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

def batch(q):
    with q.batch() as b:
        b.append(b"victim")

q = mpqueue.Queue(sys.argv[1], create=False)
call, handler = sys.argv[2:]
c = q.consumer() if "c." in call or "(c)" in call else None
exec(handler)
compile(call, "call", "exec")
print("ready", q.stats().waits, flush=True)
try:
    exec(call)
except BaseException as error:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(type(error).__name__, getattr(error, "accepted", 0), flush=True)
sys.stdin.read()
"""


class Victim:
    """A process that makes one call and then lives until it is told to end."""

    def __init__(self, path: str, call: str, handler: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", textwrap.dedent(_VICTIM), path, call, handler],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.joins = "join" in call
        word, waits = self.hear()
        assert word == "ready"
        self.waits = int(waits)

    def hear(self) -> list[str]:
        """The next line that it printed."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def until_it_sleeps(self, q: mpqueue.Queue) -> None:
        """The counter of finished sleeps moves: it is in the call, and between slices or in one."""
        if self.joins:  # polls the counters, so it counts no sleeps; only the kernel knows
            while Path(f"/proc/{self.pid}/stat").read_text().split()[2] != "S":
                pass
            return
        while q.stats().waits < self.waits + 2:
            assert self.process.poll() is None

    def end(self) -> None:
        """Lets it go, whatever it does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def victims() -> Iterator[Callable[..., Victim]]:
    made: list[Victim] = []

    def maker(*arguments: str) -> Victim:
        made.append(Victim(*arguments))
        return made[-1]

    yield maker
    for victim in made:
        victim.end()


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("call", CALLS)
def test_signal_ends_a_wait_and_nothing_is_held(
    open_queue: OpenQueue, victims: Callable[..., Victim], call: str, handler: str
) -> None:
    number, setup, expected = HANDLERS[handler]
    state, code = CALLS[call]
    q = open_queue(capacity=2)
    keep = q.consumer() if state == "busy" else None
    if state == "full":
        q.put_many([b"a", b"b"])
    victim = victims(q.path, code, setup)
    victim.until_it_sleeps(q)
    os.kill(victim.pid, getattr(signal, number))
    assert victim.hear() == [expected, "0"]

    # It lives and holds nothing that is not its own.
    stats = q.stats()
    assert (stats.reserved_items, stats.claim_gaps, stats.fault) == (0, 0, False)
    if keep is not None:
        keep.close()
    holds_role = "c." in code or "(c)" in code or code == "q.get()"
    if holds_role:
        assert stats.consumer_pid == victim.pid
        q.put(b"a")
        q.put(b"b")
        victim.end()
    with q.consumer() as c:
        if state == "busy":
            q.put_many([b"a", b"b"])
        items = c.reserve_many(2)
        assert [(item.body, item.attempts) for item in items] == [(b"a", 1), (b"b", 1)]
        c.ack_many(items)
        assert c.reserve(timeout=0) is None
        q.put(b"more")
        with c.reserve() as item:
            assert item.body == b"more"
    assert (len(q), q.stats().items_enqueued) == (0, 3)


@pytest.mark.parametrize("call", ["put", "put_many", "reserve", "reserve_many", "standby"])
def test_handled_signals_do_not_end_a_wait(
    open_queue: OpenQueue, victims: Callable[..., Victim], call: str
) -> None:
    """A storm of them neither ends the call nor makes it miss what it waits for."""
    state, code = CALLS[call]
    q = open_queue(capacity=2)
    keep = q.consumer() if state == "busy" else None
    if state == "full":
        q.put_many([b"a", b"b"])
    victim = victims(q.path, f"print('done', bool({code}), flush=True)", "storm()")
    victim.until_it_sleeps(q)
    if state == "empty":
        q.put(b"a")
    elif state == "busy":
        assert keep is not None
        keep.close()
    else:
        with q.consumer() as c:
            c.ack_many(c.reserve_many(2))
    assert victim.hear() == ["done", "True"]


def test_a_handler_may_use_the_queue(open_queue: OpenQueue, victims: Callable[..., Victim]) -> None:
    """It runs between two slices of the call, with nothing held."""
    q = open_queue(capacity=2)
    q.put_many([b"a", b"b"])
    handler = """
def use(*_):
    with q.consumer() as consumer, consumer.reserve() as item:
        print(item.body, len(q), flush=True)
signal.signal(signal.SIGUSR1, use)
"""
    victim = victims(q.path, "print('put', q.put(b'c'), flush=True)", handler)
    victim.until_it_sleeps(q)
    os.kill(victim.pid, signal.SIGUSR1)
    assert victim.hear() == ["b'a'", "2"]
    assert victim.hear() == ["put", "3"]
    with q.consumer() as c:
        items = c.reserve_many(2)
        assert [item.body for item in items] == [b"b", b"c"]
        c.ack_many(items)


@pytest.mark.crash
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_signals_under_load_lose_nothing(open_queue: OpenQueue, spool: Path, number: str) -> None:
    """Interrupted at any point of put under group commit, reserve, ack and flush.

    An interrupted put may have been accepted (its outcome is unknown), a returned one must be. An
    interrupted take of the consumer gives the item back.
    """
    q = open_queue(durability="group", segment_size=1 << 16)
    code = """
import os, signal, sys
import mpqueue
class Stop(BaseException):
    pass
armed = False
def stop(*_):
    global armed
    if armed:
        armed = False
        raise Stop
path, name, role = sys.argv[1:]
name = getattr(signal, name)
signal.signal(name, stop)
q = mpqueue.Queue(path, create=False)
number = 0
def produce():
    global number
    while number < 3000:
        number += 1
        seq = q.put(b"%s:%d" % (role.encode(), number))
        os.write(1, b"%d %d\\n" % (number, seq))
        if number % 50 == 0:
            q.flush()
def consume():
    try:
        while True:
            item = c.reserve()
            item.ack(item.seq % 7 == 0)
            del item
    except mpqueue.Sealed:
        pass
if role == "consumer":
    c = q.consumer()
os.write(1, b"ready\\n")
while True:
    try:
        armed = True
        (consume if role == "consumer" else produce)()
        armed = False
        break
    except Stop:
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, [name])  # the end of the interpreter resets handlers
q.close()
"""
    command = [sys.executable, "-P", "-W", "ignore::ResourceWarning", "-c", code, q.path, number]
    producers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in "pq"]
    consumer = subprocess.Popen([*command, "consumer"], stdout=subprocess.PIPE)
    workers = [*producers, consumer]
    for worker in workers:
        assert worker.stdout is not None
        while worker.stdout.readline() != b"ready\n":
            pass
    sent = [0, 0, 0]
    while any(worker.poll() is None for worker in producers):
        before = q.stats().items_enqueued
        for index, worker in enumerate(workers):
            if worker.poll() is None:
                os.kill(worker.pid, getattr(signal, number))
                sent[index] += 1
        while q.stats().items_enqueued < before + 20 and any(
            worker.poll() is None for worker in producers
        ):
            pass
    q.seal()
    returned = []
    for worker in workers:
        assert worker.stdout is not None
        with worker.stdout as pipe:
            returned.append(len(pipe.read().splitlines()))
        assert worker.wait() == 0
    stats = q.stats()
    print(f"puts returned {returned[:2]}, interrupted {sent}")
    assert sum(returned[:2]) <= stats.items_enqueued <= sum(returned[:2]) + sum(sent[:2])
    assert (stats.items_acked, stats.depth) == (stats.items_enqueued, 0)
    assert (stats.claim_gaps, stats.fault, stats.poisoned) == (0, False, False)


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_may_close_what_the_call_works_on(
    open_queue: OpenQueue, victims: Callable[..., Victim], call: str
) -> None:
    """The call ends with Closed instead of waiting for the handler that waits for it."""
    state, code = CALLS[call]
    q = open_queue(capacity=2)
    keep = q.consumer() if state == "busy" else None
    if state == "full":
        q.put_many([b"a", b"b"])
    victim = victims(q.path, code, "signal.signal(signal.SIGUSR1, lambda *_: q.close())")
    victim.until_it_sleeps(q)
    os.kill(victim.pid, signal.SIGUSR1)
    assert victim.hear() == ["Closed", "0"]
    assert q.stats().members_alive == 1
    assert victim.process.poll() is None
    if keep is not None:
        keep.close()
    with q.consumer() as c:
        assert [item.body for item in c.drain()] == ([b"a", b"b"] if state == "full" else [])


def test_a_handler_may_get_while_its_thread_takes_the_role(tmp_path: Path) -> None:
    class Interrupted(mpqueue.Queue):
        first = True

        def consumer(self, *args: object, **kwargs: object) -> mpqueue.Consumer:
            if self.first:
                self.first = False
                signal.raise_signal(signal.SIGUSR1)
            return super().consumer(*args, **kwargs)

    got = []
    with Interrupted(tmp_path / "spool") as q:
        q.put_many([b"1", b"2", b"3"])
        before = signal.signal(signal.SIGUSR1, lambda *_: got.append(q.get_nowait()))
        try:
            got.append(q.get_nowait())
            got.append(q.get_nowait())
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert got == [b"1", b"2", b"3"]
        for _ in got:
            q.task_done()
        assert len(q) == 0
