"""Goal: close() ends every blocking call of its handle with Closed, and waits for none of them.

Method: a thread makes the call; the counters (or, where the call polls, the kernel) show that it
sleeps; then another thread closes the handle. Nothing would ever end these calls by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue


def _batch(q: mpqueue.Queue) -> None:
    with q.batch() as b:
        b.append(b"victim")


# Queue of capacity 1 that is full or empty, or one whose consumer role another handle has.
CALLS: dict[str, tuple[str, Callable[[mpqueue.Queue, mpqueue.Consumer | None], object]]] = {
    "put": ("full", lambda q, c: q.put(b"victim")),
    "put with timeout": ("full", lambda q, c: q.put(b"victim", timeout=3600)),
    "put that may drop": ("full", lambda q, c: q.put(b"victim", timeout=3600, on_full="drop")),
    "put_many": ("full", lambda q, c: q.put_many([b"victim"])),
    "put_many in parts": ("full", lambda q, c: q.put_many([b"victim"] * 2, atomic=False)),
    "batch": ("full", lambda q, c: _batch(q)),
    "join": ("full", lambda q, c: q.join()),
    "join with timeout": ("full", lambda q, c: q.join(3600)),
    "standby": ("busy", lambda q, c: q.consumer(wait=3600)),
    "standby for ever": ("busy", lambda q, c: q.consumer(wait=float("inf"))),
    "get": ("empty", lambda q, c: q.get()),
    "get with timeout": ("empty", lambda q, c: q.get(timeout=3600)),
    "reserve": ("consumer", lambda q, c: c.reserve()),
    "reserve with timeout": ("consumer", lambda q, c: c.reserve(3600)),
    "reserve_many": ("consumer", lambda q, c: c.reserve_many(3)),
    "reserve_many that lingers": ("one item", lambda q, c: c.reserve_many(3, linger=3600)),
    "take": ("consumer", lambda q, c: c.take()),
    "wait": ("consumer", lambda q, c: c.wait()),
    "iteration": ("consumer", lambda q, c: list(c)),
    "follow": ("consumer", lambda q, c: list(c.follow("on_read"))),
}


class Blocked:
    """A thread inside one call of a handle."""

    def __init__(self, q: mpqueue.Queue, call: Callable[[], object], polls: bool) -> None:
        self.outcome: object = None
        self._call = call
        waits = q.stats().waits
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        task = Path(f"/proc/self/task/{self._thread.native_id}/stat")
        while polls and task.read_text().split()[2] != "S":
            pass
        while not polls and q.stats().waits < waits + 2:
            assert self._thread.is_alive(), self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:
            self.outcome = error

    def end(self) -> object:
        """What it returned or raised, in the end."""
        self._thread.join()
        return self.outcome


@pytest.mark.parametrize("call", CALLS)
def test_close_ends_a_blocked_call(open_queue: OpenQueue, call: str) -> None:
    """Standing by for the consumer role once went on until its own time was up."""
    state, act = CALLS[call]
    other = open_queue(capacity=1)
    q = open_queue()
    keep = other.consumer() if state == "busy" else None
    c = q.consumer() if state in ("consumer", "one item") else None
    if state in ("full", "one item"):
        other.put(b"first")
    blocked = Blocked(q, lambda: act(q, c), polls="join" in call)
    q.close()
    assert isinstance(blocked.end(), mpqueue.Closed)
    if keep is not None:
        keep.close()
    with other.consumer() as after:  # nothing kept the role or an item
        items = after.reserve_many(9, timeout=0)
        assert len(items) == (state in ("full", "one item"))
        after.ack_many(items)
    assert other.stats().reserved_items == 0


@pytest.mark.parametrize("call", [name for name in CALLS if "consumer" in CALLS[name][0]])
def test_closing_the_consumer_ends_a_blocked_call(open_queue: OpenQueue, call: str) -> None:
    q = open_queue()
    c = q.consumer()
    blocked = Blocked(q, lambda: CALLS[call][1](q, c), polls=False)
    c.close()
    assert isinstance(blocked.end(), mpqueue.Closed)


def test_close_ends_many_at_once(open_queue: OpenQueue) -> None:
    """Several that stand by and several that wait for room, in one handle."""
    other = open_queue(capacity=1)
    other.put(b"first")
    q = open_queue()
    with other.consumer():
        threads = [Blocked(q, lambda: q.consumer(wait=3600), polls=False) for _ in range(3)]
        threads += [Blocked(q, lambda: q.put(b"x"), polls=False) for _ in range(3)]
        q.close()
        assert [type(thread.end()) for thread in threads] == [mpqueue.Closed] * 6


def test_a_role_taken_while_the_handle_is_closed_is_given_back(open_queue: OpenQueue) -> None:
    """Closing and taking the role at the same time: whoever wins, the next handle gets the role."""
    other = open_queue()
    for _ in range(200):
        q = open_queue()
        start = threading.Barrier(2)
        taken: list[object] = []

        def take(
            q: mpqueue.Queue = q, start: threading.Barrier = start, taken: list[object] = taken
        ) -> None:
            start.wait()
            try:
                taken.append(q.consumer())
            except mpqueue.Closed as error:
                taken.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        start.wait()
        q.close()
        thread.join()
        other.consumer().close()
