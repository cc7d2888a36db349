"""The worker of `mpqueue exec`: what it has in hand, and what is done with it when.

An item is taken when a command can be started for it, and stays reserved until that has ended. One
that waits for its next try is held by it and becomes ready when it is due, so that it is the core
that counts attempts, in shared memory, before anybody sees the item.

One thread and one loop, which sleeps until a command ends or speaks, an item comes, a signal does,
or a time is up. At most `HELD` items wait for their next try; then nothing new is taken before one
of them is due.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import heapq
import math
import os
import selectors
import signal
import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from mpqueue._words import count as count_of
from mpqueue.cli import common, keys
from mpqueue.cli.exec_command import Command, Guard, environment
from mpqueue.cli.exec_signals import Signals
from mpqueue.cli.exec_talk import Talk

if TYPE_CHECKING:
    import mpqueue

HELD = 1000
ATTEMPTS = 5
DELAYS = (1.0, 5.0, 30.0, 300.0)
"""Of exit status 75 where --backoff says nothing else."""

RETRY = (os.EX_TEMPFAIL,)
REJECT = (os.EX_DATAERR, 100)
CANNOT_RUN = (126, 127)
_NOT_STARTED = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)


class _Held(NamedTuple):
    """An item that waits for its next try, in the order in which they are due."""

    due: float
    number: int
    item: mpqueue.Item
    failure: str | None


class Worker:
    """One consumer, and its commands."""

    def __init__(
        self,
        args: argparse.Namespace,
        queue: mpqueue.Queue,
        consumer: mpqueue.Consumer,
        signals: Signals,
        selector: selectors.BaseSelector,
        guard: Guard,
    ) -> None:
        self._args = args
        self._queue = queue
        self._consumer = consumer
        self._signals = signals
        self._selector = selector
        self._guard = guard
        self._talk = Talk(selector)
        self._environ = dict(os.environb)
        self._quotes = not keys.is_encrypted(queue.options.codec)
        self._running: dict[int, Command] = {}
        self._held: list[_Held] = []
        self._numbers = count()
        self._leases: dict[mpqueue.Item, float] = {}
        self._extend_at = math.inf
        self._stopping = False
        self._listens = False
        self._error: Exception | None = None
        self._damage = self._undecodable = False
        self._done = self._failed = self._dead = 0
        selector.register(signals.descriptor, selectors.EVENT_READ, signals.hear)

    # ---- the loop

    def work(self) -> None:
        """Until there is nothing left to do, or to be done."""
        while True:
            self._collect()
            self._obey()
            now = time.monotonic()
            self._release(now)
            self._hurry(now)
            self._extend(now)
            nothing = self._take()
            if not self._running and (
                self._stopping or (nothing and self._args.until_empty and not self._held)
            ):
                break
            self._sleep(self._next())
        self._listen(False)
        self._talk.say(
            f"{self._done} done, {count_of(self._failed, 'failed attempt')}, "
            f"{count_of(self._dead, 'dead letter')}"
        )
        while self._talk.pending:  # after a second signal it is tried once more, without waiting
            self._sleep(0.0 if self._signals.again else math.inf)
            if self._signals.again:
                break

    def close(self) -> None:
        """No command is left behind, whatever happened."""
        self._cancel()
        for command in self._running.values():
            command.finish()
            command.item._unreserve()
        self._talk.close()

    def code(self) -> int:
        """The exit code; raises what ended it too early."""
        if self._error is not None:
            raise self._error
        if self._signals.number:
            return 128 + self._signals.number
        if self._damage:
            return common.DAMAGE
        if self._undecodable:
            return common.UNDECODABLE
        return common.DEAD if self._dead else common.OK

    def _next(self) -> float:
        """When time alone gives something to do, by the monotonic clock."""
        times = [self._extend_at, self._held[0].due if self._held else math.inf]
        times += (each.deadline for each in self._running.values() if each.deadline is not None)
        return min(times)

    def _sleep(self, until: float) -> None:
        timeout = None if until == math.inf else max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data()

    def _obey(self) -> None:
        if self._signals.number and not self._stopping:
            self._stop()
        if self._signals.again:
            self._cancel()

    def _cancel(self) -> None:
        """Kills what runs; its items are given back as if they had never been taken."""
        for command in self._running.values():
            if not command.ended():
                command.cancelled = True
                command.signal(signal.SIGKILL)

    def _stop(self, error: Exception | None = None) -> None:
        """Takes nothing more; what runs may end. The first error is the one that is told."""
        self._error = self._error or error
        if not self._stopping:
            self._stopping = True
            self._release(math.inf)
            if self._running and (error is not None or self._signals.number):
                number = count_of(len(self._running), "command")
                self._talk.say(f"takes nothing more, waits for {number}")

    def _release(self, now: float) -> None:
        """Makes ready what is due."""
        while self._held and self._held[0].due <= now:
            held = heapq.heappop(self._held)
            with self._settling(held.item):
                self._give_back(held.item, held.failure)

    def _hurry(self, now: float) -> None:
        """Ends the commands whose time is up: gently, then not."""
        for command in self._running.values():
            late = command.deadline is not None and command.deadline <= now
            if late and not command.ended():
                command.signal(signal.SIGKILL if command.late else signal.SIGTERM)
                command.deadline = None if command.late else now + self._args.kill_after
                command.late = True

    def _extend(self, now: float) -> None:
        """A lease that ran out would hand an item out again while its command is at work."""
        if now < self._extend_at:
            return
        from mpqueue.exceptions import MpqueueError, StaleItem

        for item, lease in list(self._leases.items()):
            try:
                item.extend(lease)
            except StaleItem:  # whoever settles it is told
                self._leases.pop(item, None)
            except MpqueueError as error:
                self._stop(error)
        self._extend_at = now + min(self._leases.values()) / 3 if self._leases else math.inf

    # ---- taking

    def _take(self) -> bool:
        """Starts what can be started; True when nothing was ready."""
        nothing = False
        while not nothing and self._may_take():
            item = self._reserve()
            if item is not None:
                self._start(item)
            else:
                nothing = not self._stopping
        self._listen(nothing)
        return nothing

    def _listen(self, listens: bool) -> None:
        """For items: only while one could be taken, because the descriptor stays readable."""
        if listens and not self._listens:
            self._selector.register(self._consumer, selectors.EVENT_READ, _look)
        if self._listens and not listens:
            self._selector.unregister(self._consumer)
        self._listens = listens

    def _may_take(self) -> bool:
        return (
            not self._stopping
            and len(self._running) < self._args.jobs
            and len(self._held) < HELD
            and not self._talk.full
        )

    def _reserve(self) -> mpqueue.Item | None:
        """The next item; None when there is none, or when it stops."""
        from mpqueue.exceptions import Corrupt, MpqueueError, Sealed

        while not self._stopping:
            lease = self._queue.options.lease_timeout
            try:
                item = self._consumer.reserve(0)
            except Sealed:
                self._stop()
            except Corrupt as error:
                self._met_damage(error)
            except MpqueueError as error:
                self._stop(error)
            else:
                if item is not None and lease is not None:
                    self._leases[item] = lease
                    self._extend_at = min(self._extend_at, time.monotonic() + lease / 3)
                return item
        return None

    def _start(self, item: mpqueue.Item) -> None:
        from mpqueue.exceptions import CodecError

        if item.attempts > self._limit():  # it ended a worker at its last attempt
            self._bury(item, "attempts")
            return
        try:
            body = item.value
        except CodecError as error:
            self._undecodable = True
            self._talk.say(str(error))
            self._bury(item, "cannot be decoded")
            return
        environ = environment(self._environ, item, self._queue.path)
        try:
            command = Command(self._args.command, self._guard, item, body, environ, self._talk)
        except OSError as error:
            self._could_not_start(item, error)
            return
        if self._args.timeout is not None:
            command.deadline = time.monotonic() + self._args.timeout
        self._running[command.pid] = command

    def _could_not_start(self, item: mpqueue.Item, error: OSError) -> None:
        if error.errno == errno.E2BIG:  # its headers: another item may do
            self._failure(item, f"cannot be started: {error.strerror}", b"")
            return
        self._refund(item)
        text = f"{self._args.command[0]}: {error.strerror}"
        if error.errno in _NOT_STARTED:
            self._stop(common.UsageError(f"exec: {text}; item {item.seq} stays in the queue"))
        else:
            self._stop(OSError(error.errno, text))

    # ---- settling

    def _collect(self) -> None:
        """Settles the items of the commands that have ended."""
        for command in [each for each in self._running.values() if each.ended()]:
            code = command.finish()
            del self._running[command.pid]
            self._settle(command, code)

    def _settle(self, command: Command, code: int) -> None:
        item = command.item
        if command.cancelled:
            self._refund(item)
        elif command.late:
            limit = common.human_time(self._args.timeout)
            self._failure(item, f"took longer than {limit}", command.voice.tail)
        elif code == 0:
            with self._settling(item):
                item.ack()
                self._done += 1
        elif code in RETRY:
            delay = self._delay(item, self._args.backoff) or self._delay(item, DELAYS)
            self._later(item, delay, f"item {item.seq}: exit status {code}")
        elif code in REJECT:
            self._talk.say(f"item {item.seq}: exit status {code}; a dead letter now")
            self._bury(item, self._quoted(f"exit status {code}", command.voice.tail))
        elif code in CANNOT_RUN:
            self._refund(item)
            self._stop(
                common.UsageError(
                    f"exec: {self._args.command[0]}: exit status {code}, which means that it "
                    f"cannot be run; item {item.seq} stays in the queue"
                )
            )
        else:
            what = f"exit status {code}" if code > 0 else f"killed by {_name(-code)}"
            self._failure(item, what, command.voice.tail)

    def _failure(self, item: mpqueue.Item, what: str, tail: bytes) -> None:
        """An attempt that counts."""
        self._failed += 1
        limit = self._limit()
        text = f"item {item.seq}: {what}, attempt {item.attempts} of {limit}"
        failure = self._quoted(what, tail)
        if item.attempts < limit:
            self._later(item, self._delay(item, self._args.backoff), text, failure)
            return
        self._talk.say(f"{text}; a dead letter now")
        if self._queue.options.max_attempts == limit:
            with self._settling(item):
                item.nack(reason=failure)  # the core moves it, with the history that it has
                self._dead += 1
        else:
            self._bury(item, failure)

    def _later(
        self, item: mpqueue.Item, delay: float, text: str, failure: str | None = None
    ) -> None:
        """The next try; without a failure this one does not count."""
        if self._stopping or delay == 0:
            self._talk.say(f"{text}; again")
            with self._settling(item):
                self._give_back(item, failure)
            return
        self._talk.say(f"{text}; again in {common.human_time(delay)}")
        due = time.monotonic() + delay
        heapq.heappush(self._held, _Held(due, next(self._numbers), item, failure))

    def _give_back(self, item: mpqueue.Item, failure: str | None) -> None:
        if failure is None:
            item._unreserve()
        else:
            item.nack(reason=failure)

    def _refund(self, item: mpqueue.Item) -> None:
        with self._settling(item):
            self._give_back(item, None)

    def _bury(self, item: mpqueue.Item, reason: str) -> None:
        with self._settling(item):
            item.dead(reason)
            self._dead += 1

    @contextlib.contextmanager
    def _settling(self, item: mpqueue.Item) -> Iterator[None]:
        """For what is the end of a hand-out; an error is the end of all of them."""
        from mpqueue.exceptions import Corrupt, MpqueueError, StaleItem

        self._leases.pop(item, None)
        try:
            yield
        except StaleItem:
            self._talk.say(f"item {item.seq}: its lease had run out, so it comes again")
        except Corrupt as error:
            self._met_damage(error)
        except (MpqueueError, OSError) as error:
            self._stop(error)

    def _met_damage(self, error: Exception) -> None:
        """Counted and passed: what lies behind it is whole."""
        self._damage = True
        self._talk.say(str(error))

    def _limit(self) -> int:
        """Attempts after which an item is a dead letter."""
        of_queue = self._queue.options.max_attempts
        own: int | None = self._args.max_attempts
        if of_queue is None:
            return ATTEMPTS if own is None else own
        return of_queue if own is None else min(own, of_queue)

    def _delay(self, item: mpqueue.Item, delays: tuple[float, ...]) -> float:
        return delays[min(item.attempts, len(delays)) - 1] if delays else 0.0

    def _quoted(self, what: str, tail: bytes) -> str:
        """With the end of what the command said; that may quote an item, and is not encrypted."""
        text = " ".join(tail.decode("utf-8", "replace").split())
        return f"{what}: {common.shown(text)}" if text and self._quotes else what


def _look() -> None:
    """An item may be there: the loop looks anyway."""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of real time
        return f"signal {number}"
