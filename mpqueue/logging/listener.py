"""QueueListener: a thread that hands the records of a queue to handlers, and acks after they wrote.

A record is handled when every handler has taken it and was flushed without an error. Handlers hide
their errors in `handleError`, so while the listener runs each one's is replaced by one that also
tells the listener. A record that is not handled is given back and comes again, to the handlers that
failed only, after a pause; records behind it wait, so the order holds.
"""

from __future__ import annotations

import functools
import logging
import logging.handlers
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import mpqueue
from mpqueue._begun import refuse_again
from mpqueue.logging import record as records

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mpqueue.queue import Path

__all__ = ["QueueListener"]

LOOK_S = 0.1  # how often a waiting listener looks whether it is to stop
PAUSE_S = 0.1  # before a record comes again, doubled each time
PAUSE_MAX_S = 5.0


class QueueListener(logging.handlers.QueueListener):
    """Takes the consumer role of a queue and gives its records to handlers, in order.

    Stopping is local: nothing goes through the queue, producers do not notice, and what is left
    waits for the next listener. A record is handled at least once: after a crash between a write
    and its ack it comes again. `mpqueue logd` writes each once.

    A failing handler holds the records up, for as long as it fails with an OSError: a full disk, a
    lost connection. After any other error at the record's hand-out number `max_attempts` (restarts
    count too) the record itself is to blame, for example because it lacks a field that the format
    names: it is acked, counted in `given_up`, and all that is left of it is what `handleError`
    printed. An item that is no record is given to the handlers as a record of `mpqueue.logging`
    that shows it.
    """

    given_up: int
    """Records that no handler could take, in this listener."""

    def __init__(
        self,
        queue: mpqueue.Queue | Path,
        *handlers: logging.Handler,
        respect_handler_level: bool = False,
        max_attempts: int = 5,
    ) -> None:
        """Listen to `queue`, a handle or a path, which is opened by start() and closed by stop().

        The role is taken by start(). ValueError when max_attempts is less than 1.
        """
        refuse_again(self, "given_up")
        if max_attempts < 1:
            raise ValueError("max_attempts is 1 or more")
        given: Any = queue
        super().__init__(given, *handlers, respect_handler_level=respect_handler_level)
        self._thread: threading.Thread | None = None
        self._max_attempts = max_attempts
        self.given_up = 0

    # ---- start and stop

    def start(self) -> None:
        """Take the consumer role and start the thread.

        Raises RuntimeError when it is started, ConsumerBusy while another process has the role,
        and what opening the path raises.
        """
        if self._running():
            raise RuntimeError("the listener is started already")
        self._opened: mpqueue.Queue | None = None
        queue: Any = self.queue
        if not isinstance(queue, mpqueue.Queue):
            self._opened = queue = mpqueue.Queue(queue)
        try:
            self._consumer = queue.consumer()
        except BaseException:
            if self._opened is not None:
                self._opened.close()
            raise
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._limit = 0  # when stopping: seqs below it are still handled
        self._took: set[int] = set()  # handlers that have taken the record in hand
        self._errors: list[BaseException] = []
        self._failures = 0
        self._thread = threading.Thread(target=self._monitor, name="mpqueue-log", daemon=True)
        self._thread.start()

    def stop(self, drain: bool = True) -> None:
        """Handle what was put before this call, then end the thread and give the role back.

        drain: False leaves everything but the record in hand to the next listener. So does a
        handler that fails. Harmless when it is not started, and in a forked child.
        """
        if not self._running():
            self._thread = None
            return
        if drain and not self._consumer.closed:
            self._limit = self._consumer.queue.stats().next_seq
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        if self._opened is not None:
            self._opened.close()

    def _running(self) -> bool:
        return self._thread is not None and self._pid == os.getpid()

    def enqueue_sentinel(self) -> None:
        """Ask the thread to end after the record in hand: no sentinel passes through the queue."""
        if self._running():
            self._stopping.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the thread

    def _monitor(self) -> None:
        """Errors of the queue end the thread and are shown by `threading.excepthook`."""
        watched = self._watch()
        try:
            with self._consumer:
                while self._step():
                    pass
        finally:
            for handler, watch, previous in watched:
                if vars(handler).get("handleError") is watch:
                    del vars(handler)["handleError"]
                    vars(handler).update(previous)

    def _step(self) -> bool:
        """One record at most. False when it is time to end."""
        stopping = self._stopping.is_set()
        wait = not stopping or self._consumer.queue.stats().floor < self._limit
        try:
            item = self._consumer.reserve(LOOK_S if wait else 0)
        except mpqueue.Sealed:
            return False
        except mpqueue.Corrupt as error:
            took, self._took = self._took, set()  # of a record that is to come again
            self._offer(records.notice(logging.ERROR, f"log records were lost: {error}"))
            self._took = took
            return True
        if item is None:
            return not stopping
        if stopping and item.seq >= self._limit:
            item.nack()
            return False
        if self._settle(item):
            self._failures = 0
            self._took.clear()
            return True
        self._failures += 1
        self._stopping.wait(min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self._failures - 1, 10)))
        return not self._stopping.is_set()

    def _settle(self, item: mpqueue.Item) -> bool:
        """Acks after the handlers wrote, nacks when one failed."""
        errors = self._offer(records.from_item(item))
        passing = any(isinstance(error, OSError) for error in errors)
        if errors and not passing and item.attempts >= self._max_attempts:
            self.given_up += 1
            errors = []
        if errors:
            item.nack()
            return False
        item.ack()
        return True

    def _offer(self, record: logging.LogRecord) -> list[BaseException]:
        """Gives a record to the handlers; returns what went wrong."""
        self._errors = []
        try:
            self.handle(record)
        except Exception as error:  # of prepare(), or of a subclass
            self._errors.append(error)
        return self._errors

    def handle(self, record: logging.LogRecord) -> None:
        """Give a record to each handler that has not taken it yet, and flush that handler."""
        record = self.prepare(record)
        for number, handler in enumerate(self.handlers):
            if number in self._took:
                continue
            if self.respect_handler_level and record.levelno < handler.level:
                continue
            before = len(self._errors)
            try:
                handler.handle(record)
                handler.flush()
            except Exception:
                handler.handleError(record)
            if len(self._errors) == before:
                self._took.add(number)

    # ---- errors of handlers

    def _watch(self) -> list[tuple[logging.Handler, object, dict[str, Any]]]:
        """Replaces `handleError` of all handlers, and of those that they pass records on to."""
        watched: list[tuple[logging.Handler, object, dict[str, Any]]] = []
        pending: list[Any] = list(self.handlers)
        while pending:
            handler = pending.pop()
            if not isinstance(handler, logging.Handler) or any(handler is w[0] for w in watched):
                continue
            own = vars(handler)
            previous = {name: own[name] for name in ("handleError",) if name in own}
            watch = functools.partial(self._failed, handler.handleError)
            own["handleError"] = watch
            watched.append((handler, watch, previous))
            pending.append(getattr(handler, "target", None))
        return watched

    def _failed(self, say: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
        if threading.current_thread() is self._thread:
            self._errors.append(sys.exc_info()[1] or RuntimeError("a handler failed"))
        say(record)
