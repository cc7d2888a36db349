"""QueueHandler: puts log records into a queue.

A log call never raises into the application, with the one exception that the standard library
makes: what a signal handler raises passes through. The lock of the handler is held during a put,
so other threads that log wait for it.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading
from typing import TYPE_CHECKING, Any

import mpqueue
from mpqueue._begun import refuse_again
from mpqueue._words import count
from mpqueue.logging import record as records

if TYPE_CHECKING:
    from mpqueue.queue import Path

__all__ = ["QueueHandler"]

_DEFERRED_MAX = 100
_NOBODY = (0, 0)


class QueueHandler(logging.handlers.QueueHandler):
    """Puts each record, as JSON, into an mpqueue.

    A record for which there is no room is dropped and counted: in `dropped`, in the queue's
    `items_dropped`, and, when there is room again, by a record of the logger `mpqueue.logging` at
    level WARNING ahead of the next one. The first of each series also goes to `handleError`, and so
    does every other failure; as everywhere in `logging` that prints to stderr, or nothing when
    `logging.raiseExceptions` is false.

    Works in forked children as it is; what the parent dropped is not counted there. A record that
    is logged while this handler puts, by the queue itself or by a signal handler, follows after it.
    After an accepted record nothing but the queue's durability policy stands between it and a power
    cut: under "sync" and "group" a log call waits for the disk, "interval" suits logs better.
    """

    queue: Any
    """The mpqueue.Queue."""
    dropped: int
    """Records that found no room, in this process."""

    def __init__(
        self, queue: mpqueue.Queue | Path, *, timeout: float | None = 0.0, **options: Any
    ) -> None:
        """Put into `queue`: a handle, which stays the caller's to close, or the path of one.

        timeout: seconds that a log call may wait for room; None waits for ever.
        options: with a path, as for mpqueue.Queue, which makes the queue when it is not there.

        Raises what mpqueue.Queue raises; TypeError for options beside a handle; ValueError for a
        negative timeout.
        """
        refuse_again(self, "_unsaid")
        if timeout is not None and not timeout >= 0:
            raise ValueError("timeout is a number of seconds >= 0, or None to wait for ever")
        self._path: Path | None = None
        self._options = options
        opened: Any = queue
        if not isinstance(queue, mpqueue.Queue):
            self._path = queue
            opened = mpqueue.Queue(queue, **options)
        elif options:
            raise TypeError(f"options of an open queue cannot be given: {', '.join(options)}")
        super().__init__(opened)
        self.listener: logging.handlers.QueueListener | None = None
        self._timeout = float("inf") if timeout is None else timeout
        self._begin(os.getpid())

    def _begin(self, pid: int) -> None:
        """State of one process: a forked child must not go on with its parent's."""
        self._pid = pid
        self._busy = _NOBODY
        self._deferred: list[logging.LogRecord] = []
        self.dropped = 0
        self._unsaid = 0  # dropped since the last notice

    def prepare(self, record: logging.LogRecord) -> bytes:
        """The record as `mpqueue.logging.encode()` makes it; the record itself is not changed."""
        return records.encode(record, self.formatter)

    def enqueue(self, record: Any) -> None:
        """Put what prepare() returned. Raises Full when there is no room in time."""
        if self._path is not None and self.queue.closed:
            self.queue = mpqueue.Queue(self._path, **self._options)
        if self._unsaid:
            dropped = count(self._unsaid, "log record", "were")
            text = f"{dropped} dropped: {self.queue.path} was full"
            self._put(self.prepare(records.notice(logging.WARNING, text)))
            self._unsaid = 0
        self._put(record)

    def _put(self, body: bytes) -> None:
        seq = self.queue.put(body, True, self._timeout, on_full="drop")
        if seq is None:
            raise mpqueue.Full(
                f"{self.queue.path}: full, the log record is dropped; start or speed up its "
                "listener, or raise the bounds of the queue"
            )

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record; called by handle() with the lock of the handler held."""
        pid = os.getpid()
        if pid != self._pid:
            self._begin(pid)
            self.queue.stats()  # joins anew, however long siblings take that do so at the same time
        me = (pid, threading.get_ident())
        if self._busy == me:  # inside a put of this thread: it would recurse
            if len(self._deferred) < _DEFERRED_MAX:
                self._deferred.append(record)
            else:
                self.dropped += 1
                self._unsaid += 1
            return
        self._busy = me
        try:
            self._send(record)
        finally:
            try:
                for _ in range(_DEFERRED_MAX):
                    if not self._deferred:
                        break
                    self._send(self._deferred.pop(0))
            finally:
                self._busy = _NOBODY

    def _send(self, record: logging.LogRecord) -> None:
        try:
            self.enqueue(self.prepare(record))
        except mpqueue.Full:
            self.dropped += 1
            self._unsaid += 1
            if self._unsaid == 1:
                self.handleError(record)
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Everything so far is on the disk, whatever the policy. Raises FlushFailed, Poisoned."""
        if not self.queue.closed:
            self.queue.flush()

    def close(self) -> None:
        """Close the queue if the handler opened it; a later record opens it again."""
        self.acquire()
        try:
            if self._path is not None:
                self.queue.close()
        finally:
            self.release()
            super().close()
