"""Queue: the handle of one process on a queue directory, and what acts on a path as a whole.

The native half puts, flushes and counts. Here are paths, options, batches, the method names of
`queue.Queue`, pickling, and what is said in the log. A handle starts no thread and needs no set-up
after a fork: a forked child joins anew at its first call.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque

from mpqueue import _log, _native, semaphore
from mpqueue._begun import refuse_again
from mpqueue.consumer import Consumer
from mpqueue.exceptions import (
    Closed,
    ConsumerBusy,
    Empty,
    Full,
    LockTimeout,
    MpqueueError,
    NoSpace,
    Sealed,
    TooLarge,
)
from mpqueue.options import NO_CODEC, from_native, to_native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Generic, Literal, Self, TypedDict, Unpack, overload

    from typing_extensions import Buffer, TypeVar

    from mpqueue._native import Item
    from mpqueue.codecs import Codec
    from mpqueue.dead import DeadLetters
    from mpqueue.exceptions import Corrupt
    from mpqueue.options import Durability, Options
    from mpqueue.reader import Inspection
    from mpqueue.stats import Member, Repair, Stats

    Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    T = TypeVar("T", default=bytes)
    V = TypeVar("V")

    class _Given(TypedDict, total=False):
        create: bool
        segment_size: int | None
        max_segments: int | None
        keep_segments: int | None
        capacity: int | None
        max_bytes: int | None
        max_item: int | None
        durability: Durability | None
        interval_items: int | None
        interval: float | None
        ack_window: int | None
        ack_linger: float | None
        max_members: int | None
        key_window: int | None
        retain: float | None
        lease_timeout: float | None
        max_attempts: int | None
        dead_retain: float | None
        mode: int | None
        on_loss: Callable[[Corrupt], object] | None

else:  # what the classes below are made of, without the cost of importing typing
    T = "T"
    Generic = {T: object}

__all__ = ["Batch", "Queue", "destroy", "inspect", "repair"]

_ALLOW_FILESYSTEM = "MPQUEUE_ALLOW_FILESYSTEM"
_PATIENCE_S = 10.0  # while another thread of this process has the role for a moment
_JOIN_SLICE = 0.05


def _absolute(path: Path) -> bytes:
    name = os.fsencode(path)
    if not name:
        raise ValueError("an empty path is no directory of a queue: '.' is the current one")
    return os.path.abspath(name)


def _holds_dead_letters(path: str) -> bool:
    around, name = os.path.split(path)
    return name == "dead" and os.path.exists(os.path.join(around, "meta"))


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError("a timeout is a number of seconds >= 0, or None to wait for ever")


class Queue(_native.Queue[T]):
    """A durable queue in a directory: any number of processes put, one consumes.

    Items are bytes, or with a codec the objects that it makes bytes of: `Queue[Job]`.

    Opening needs no server and no parent: every process opens the path itself, or inherits or
    unpickles the handle. `len(q)` counts unacked items; `bool(q)` is always true.

    >>> import mpqueue, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with mpqueue.Queue(directory + "/spool") as q:
    ...         q.put(b"hello")
    ...         with q.consumer() as c, c.reserve() as item:
    ...             item.body
    ...     mpqueue.destroy(directory + "/spool")
    1
    b'hello'
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Queue[bytes],
            path: Path,
            *,
            raw: Literal[True],
            codec: Codec[Any] | str | None = ...,
            **options: Unpack[_Given],
        ) -> None: ...
        @overload
        def __init__(
            self: Queue[V],
            path: Path,
            *,
            codec: Codec[V],
            raw: bool = ...,
            **options: Unpack[_Given],
        ) -> None: ...
        @overload
        def __init__(
            self, path: Path, *, codec: None = ..., raw: bool = ..., **options: Unpack[_Given]
        ) -> None: ...
        @overload
        def __init__(
            self: Queue[bytes],
            path: Path,
            *,
            codec: Literal["bytes", "bytes+zstd"],
            raw: bool = ...,
            **options: Unpack[_Given],
        ) -> None: ...
        @overload
        def __init__(
            self: Queue[Any], path: Path, *, codec: str, raw: bool = ..., **options: Unpack[_Given]
        ) -> None: ...

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        codec: Codec[Any] | str | None = None,
        raw: bool = False,
        segment_size: int | None = None,
        max_segments: int | None = None,
        keep_segments: int | None = None,
        capacity: int | None = None,
        max_bytes: int | None = None,
        max_item: int | None = None,
        durability: Durability | None = None,
        interval_items: int | None = None,
        interval: float | None = None,
        ack_window: int | None = None,
        ack_linger: float | None = None,
        max_members: int | None = None,
        key_window: int | None = None,
        retain: float | None = None,
        lease_timeout: float | None = None,
        max_attempts: int | None = None,
        dead_retain: float | None = None,
        mode: int | None = None,
        on_loss: Callable[[Corrupt], object] | None = None,
    ) -> None:
        """Open the queue at `path`, or make it when `create` is true and nothing is there.

        Options (see `mpqueue.Options`; sizes in bytes, durations in seconds) count at creation. An
        existing queue must agree with those that are given. on_loss is the default of consumer().

        codec: an object with name, encode and decode, or the name of one (see `mpqueue.codecs`).
        The queue records the name. None: the one that is recorded, if it is bytes, json, msgpack,
        numpy or one of these with +zstd; others are used only when they are named, and those that
        encrypt (`codecs.Aes`) when they are given with their keys.
        raw: put and get the bytes as they are stored, whatever the codec, which is not loaded.

        Blocks while another process recovers or destroys the queue, and while this one recovers it
        after an operating-system crash.

        Raises NotAQueue, FormatError, OptionsMismatch, KeyMismatch, UnsupportedFilesystem, NoSpace,
        ValueError for an option out of range or an unknown codec, ImportError when a codec misses
        its library, OSError; on any of them nothing that existed was changed.
        """
        refuse_again(self, "_dead")
        given: dict[str, Any] = {
            "segment_size": segment_size,
            "max_segments": max_segments,
            "keep_segments": keep_segments,
            "capacity": capacity,
            "max_bytes": max_bytes,
            "max_item": max_item,
            "durability": durability,
            "interval_items": interval_items,
            "interval": interval,
            "ack_window": ack_window,
            "ack_linger": ack_linger,
            "max_members": max_members,
            "key_window": key_window,
            "retain": retain,
            "lease_timeout": lease_timeout,
            "max_attempts": max_attempts,
            "dead_retain": dead_retain,
            "mode": mode,
        }
        if on_loss is not None and not callable(on_loss):
            raise TypeError("on_loss is None or a callable that takes a Corrupt")
        self._given = {name: value for name, value in given.items() if value is not None}
        self._codec: Codec[T] | None = None
        self._named = codec
        self._raw = raw
        if codec is not None:
            from mpqueue.codecs import registry

            if not raw and codec != NO_CODEC:
                self._codec = registry.check(codec)
            self._given["codec"] = registry.name_of(codec)
        self._create = create
        self._on_loss = on_loss
        self._consumer: Callable[[], Consumer[T] | None] = lambda: None
        self._consumer_pid = -1
        # What get() handed out, oldest first, by the thread that got it.
        self._undone: dict[threading.Thread, deque[Item[T]]] = {}
        self._get_consumer: Consumer[T] | None = None
        self._get_pid = -1
        # One lock a process: a forked child must not inherit one that a thread of its parent held.
        self._role_locks: dict[int, threading.RLock] = {}
        self._gated = False
        where = _absolute(path)
        if not raw:
            self._judge(where)
        super().__init__(
            where,
            create=create,
            options=to_native(self._given),
            allow_filesystem=os.environ.get(_ALLOW_FILESYSTEM),
        )
        self._dead: DeadLetters[T] | None = None
        stored = self._options()
        if self._codec is not None or (codec is None and not raw and stored["codec"]):
            self._use_codec(stored["codec"])
        gate = self.gate_name
        if _holds_dead_letters(self.path):  # nobody would remove it with the queue around this one
            self._open_gate(None, 0, 0)
            return
        self._gated = semaphore.ensure(gate, stored["file_mode"], self.path)
        self._open_gate(gate if self._gated else None, *semaphore.identity(gate))

    def _judge(self, path: bytes) -> None:
        """Refuses by what meta says of codec and keys, before anything is joined or recovered."""
        if self._codec is None and self._named is not None:
            return
        try:
            look = _native.look(path)
        except (MpqueueError, OSError):
            return  # there is none yet, or opening says what is wrong
        if look[1]:
            from mpqueue.codecs import registry

            registry.judge(self._codec, look, os.fsdecode(path))

    def _use_codec(self, name: str) -> None:
        """Sets the hooks; `name` is recorded. Keys are judged again: this is the queue itself."""
        from mpqueue.codecs import registry

        try:
            if self._codec is None:
                self._codec = registry.recorded(name, self.path)
            bound = registry.bind(self._codec, self)
        except BaseException:
            super().close()
            raise
        self._encode = bound.encode
        self._decode = registry.decoder(bound, self.path)

    # ---- consuming

    def consumer(
        self,
        wait: float | None = None,
        views: bool = False,
        on_loss: Callable[[Corrupt], object] | None = None,
    ) -> Consumer[T]:
        """Take the consumer role. One process at a time, one consumer a handle.

        wait: seconds to stand by for a live holder to end; None raises ConsumerBusy at once.
        views: hand out read-only memoryviews over the segments instead of bytes; they stay valid
        after ack, close and exit of the consumer.
        on_loss: called with each Corrupt instead of it being raised from reserve.
        """
        import weakref

        if on_loss is None:
            on_loss = self._on_loss
        consumer = Consumer(self, wait=wait, views=views, on_loss=on_loss)
        self._consumer = weakref.ref(consumer)
        self._consumer_pid = os.getpid()
        return consumer

    def _own_consumer(self) -> Consumer[T] | None:
        """The open consumer of this handle in this process, which may be a forked child's."""
        consumer = self._consumer()
        if consumer is None or consumer.closed or self._consumer_pid != os.getpid():
            return None
        return consumer

    def _role(self) -> Consumer[T]:
        """The consumer behind get(), taken on first use and kept until close()."""
        role = self._open_role()
        if role is not None:
            return role
        # A signal handler may call get() while its own thread takes the role here.
        with self._lock():
            role = self._open_role()
            if role is None:
                try:
                    role = self.consumer()
                except ConsumerBusy:
                    role = self._open_role()
                    if role is None:
                        raise
                else:
                    self._get_pid, self._undone = os.getpid(), {}
                    self._get_consumer = role
            return role

    def _lock(self) -> threading.RLock:
        return self._role_locks.setdefault(os.getpid(), threading.RLock())

    def _open_role(self) -> Consumer[T] | None:
        role = self._get_consumer
        if role is None or self._get_pid != os.getpid() or role.closed:
            return None
        return role

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the next item's value, as `queue.Queue.get` does; task_done() acks it.

        The first call takes the consumer role for this handle and keeps it until close(). Items
        without task_done() come again: after close(), a crash, or in the next consumer.

        Raises Empty when nothing came in time, Sealed, ConsumerBusy, Corrupt, and CodecError, whose
        `item` is not one for task_done(): ack it to drop it.
        """
        item = self._role().reserve(timeout if block else 0)
        if item is None:
            raise Empty(f"{self.path}: nothing was ready in time")
        value = item.value
        with self._lock():
            self._undone.setdefault(threading.current_thread(), deque()).append(item)
        return value

    def get_nowait(self) -> T:
        """get(block=False)."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Ack the oldest payload that this thread got and has not acked. ValueError when none is.

        A thread that got none acks the oldest one of all threads: where payloads are handed on and
        finish out of order, use reserve() and ack().
        """
        with self._lock():
            held = self._undone.get(threading.current_thread())
            if not held:
                others = [items for items in self._undone.values() if items]
                held = min(others, key=lambda items: items[0].seq, default=None)
            if held is None:
                raise ValueError(
                    "task_done() called too many times: every payload from get() has been acked"
                )
            item = held.popleft()
            if not held:
                self._undone = {thread: items for thread, items in self._undone.items() if items}
        item.ack()

    def join(self, timeout: float | None = None) -> bool:
        """Block until every item is settled, in whatever process. False when the time is up.

        Raises Closed, QueueRemoved.
        """
        _check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.001
        while len(self):
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                pause = min(pause, left)
            if self.closed:
                raise Closed(f"{self.path}: the queue was closed while join() waited")
            self._still_there()
            time.sleep(pause)
            pause = min(pause * 2, _JOIN_SLICE)
        if not self.closed:
            self._still_there()
        return True

    def join_thread(self) -> None:
        """Nothing: there is no thread. For code written for `multiprocessing.Queue`."""

    def cancel_join_thread(self) -> None:
        """Nothing: what was put is in the queue. For code written for `multiprocessing.Queue`."""

    def qsize(self) -> int:
        """Items that are ready now; `len(q)` counts those in hand too."""
        return int(self._stats()["ready_items"])

    def empty(self) -> bool:
        """Nothing is ready now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """`capacity` or `max_bytes` is reached now. Advisory, as in `queue.Queue`."""
        bounds, now = self._options(), self._stats()
        capacity, max_bytes = bounds["capacity"], bounds["max_bytes"]
        return bool(
            (capacity and now["depth"] >= capacity)
            or (max_bytes and now["backlog_bytes"] >= max_bytes)
        )

    def checkpoint(self) -> None:
        """Flush, persist all acks, and give back the disk space that they free.

        With the option dead_retain, old dead letters are dropped; a failure of that is a WARNING.

        Uses the consumer of this handle, or takes the role for the moment. Raises ConsumerBusy
        when another process has it, FlushFailed, Poisoned.
        """
        patient_until = time.monotonic() + _PATIENCE_S
        while not self._checkpoint_once(time.monotonic() < patient_until):
            time.sleep(0.001)
        if self._options()["dead_retain_ns"]:
            self.dead._sweep_quietly()

    def _checkpoint_once(self, patient: bool) -> bool:
        """False, where `patient`: the role is taken, or given back, just now; perhaps by another
        thread of this process."""
        consumer = self._own_consumer()
        try:
            if consumer is not None:
                consumer.checkpoint()
            else:
                with self.consumer() as temporary:
                    temporary.checkpoint()
        except ConsumerBusy as busy:
            if busy.pid not in (-1, os.getpid()) or not patient:
                raise
            return False
        except Closed:
            if self.closed:
                raise
            return False
        return True

    # ---- putting

    def batch(self, timeout: float | None = None) -> Batch[T]:
        """Collect items and put them as one: all or nothing, one flush, on leaving `with`.

        >>> with q.batch() as b:  # doctest: +SKIP
        ...     b.append(b"one")
        ...     b.append(b"two")

        Nothing is put when the body raises. Without `with`, commit() puts. timeout: as for
        put_many(), of each commit.
        """
        _check_timeout(timeout)
        return Batch(self, timeout)

    # ---- looking

    @property
    def dead(self) -> DeadLetters[T]:
        """The dead letters of this queue: to look at them, put them back, drop them."""
        from mpqueue.dead import DeadLetters

        if self._dead is None:
            self._dead = DeadLetters(self)
        return self._dead

    @property
    def options(self) -> Options:
        """The options of the queue now."""
        return from_native(self._options())

    def set_options(self, **changes: Any) -> None:
        """Change options for all processes, durably; they see it at their next call.

        None stands for "no bound" where an option can be absent. segment_size, ack_window,
        max_members and key_window are fixed: ValueError.
        """
        self._set_options(to_native(changes))

    def stats(self) -> Stats:
        """Counters and gauges now; after close() those from when it began."""
        from mpqueue.stats import from_native as stats_from_native

        return stats_from_native(self._stats())

    def members(self) -> list[Member]:
        """Who is attached, as far as the table of members has room."""
        from mpqueue.stats import member

        return [member(entry, _native.ROLE_CONSUMER) for entry in self._members()]

    # ---- the handle

    def close(self) -> None:
        """Leave the queue. Local and idempotent; other processes go on, sealing is seal().

        Flushes what this handle published, closes its consumer (items in hand are ready again),
        and ends its blocked calls with Closed. Views stay valid. Raises FlushFailed or Poisoned
        when the flush failed; the handle is closed all the same.
        """
        held = self._own_consumer()  # the native half works with it until the end
        try:
            try:
                if held is not None:
                    held._tell_losses()
            finally:
                super().close()
        finally:
            del held
            if self._dead is not None:
                self._dead._close()
            self._undone = {}
            self._get_consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        given = {**self._given, "codec": self._named, "raw": self._raw}
        return _reopen, (type(self), self.path, self._create, given)

    def __repr__(self) -> str:
        if self.closed:
            return f"<mpqueue.Queue {self.path!r} closed>"
        return f"<mpqueue.Queue {self.path!r} depth={len(self)}>"

    def _report_events(
        self,
        events: int,
        lost_items: int,
        lost_bytes: int,
        holder: int,
        torn_items: int,
        at_most: int,
        dead: str,
    ) -> None:
        """Say in the log what the native half noticed; it calls this on its slow paths."""
        from mpqueue._words import count

        path = self.path
        if events & _native.EVENT_LOSS:
            _log.warn(
                "%s: damage met and passed: %s, %s lost; run `mpqueue verify`",
                path,
                count(lost_items, "item"),
                count(lost_bytes, "byte"),
            )
        if events & _native.EVENT_RECOVERED:
            _log.warn(
                "%s: recovered after a crash: %s torn, at most %d may be missing",
                path,
                count(torn_items, "item", "were"),
                at_most,
            )
        if events & _native.EVENT_DEAD:
            _log.warn(
                "%s: the dead letters in %s/dead take nothing (%s): items past max_attempts stay "
                "in the queue, are not handed out, and are tried again; `mpqueue doctor` says more",
                path,
                path,
                dead,
            )
        if events & _native.EVENT_TAKEOVER:
            _log.warn("%s: the header lock was taken over from a dead process", path)
        if events & _native.EVENT_LOCK_WAIT:
            _log.warn(
                "%s: waited more than 10 s for the header lock, held by process %d: is it stopped?",
                path,
                holder,
            )
        if events & _native.EVENT_WEAK:
            _log.warn(
                "%s: this filesystem cannot pin lock bytes by a mapping: descriptors are kept and "
                "segment files are not reused",
                path,
            )
        if events & _native.EVENT_GATE and self._gated:  # else said when it could not be made
            _log.warn(
                "%s: its semaphore is missing or not the one that its other processes use: here "
                "waits for the header lock use a futex, and theirs may last a slice (up to 64 ms) "
                "longer; nothing is lost. Mount the same /dev/shm in every container, or start "
                "them in one IPC namespace (--ipc=container:NAME); where the semaphore was "
                "removed, close the queue in every process and open it again",
                path,
            )


def _reopen(kind: type[Queue[T]], path: str, create: bool, given: dict[str, Any]) -> Queue[T]:
    return kind(path, create=create, **given)


class Batch(Generic[T]):
    """Items to be put as one; made by `Queue.batch()`.

    commit() puts what was appended so far, as often as wanted; leaving `with` commits the rest.
    One that is collected with items in it drops them, with a ResourceWarning.
    """

    def __init__(self, queue: Queue[T], timeout: float | None) -> None:
        refuse_again(self, "seqs")
        self._queue = queue
        self._timeout = timeout
        self._items: list[bytes] = []
        self._keys: list[bytes | str | None] = []
        self._pid = os.getpid()
        self.seqs: range | list[int] | None = None
        """Seqs of the items of the newest commit, a list with keys; None before there was one."""

    if TYPE_CHECKING:

        @overload
        def append(self: Batch[bytes], item: Buffer, *, key: bytes | str | None = None) -> None: ...
        @overload
        def append(self, item: T, *, key: bytes | str | None = None) -> None: ...

    def append(self, item: Any, *, key: bytes | str | None = None) -> None:
        """Add one item, encoded or copied now. TooLarge comes on commit. key: as in put().

        What the codec raises, and what put() raises for a key, adds nothing; caught inside the
        block, the rest is put all the same.
        """
        self._check_process()
        encode = self._queue._encode
        body: Any = item if encode is None else encode(item)
        try:
            body = body if type(body) is bytes else bytes(memoryview(body))
        except TypeError:
            raise TypeError(
                f"an item is bytes or another bytes-like object, not {type(body).__name__}: "
                "encode it first, or give the queue a codec"
            ) from None
        if key is not None:
            self._queue._check_key(key)
        self._keys.append(key)
        self._items.append(body)

    def commit(self) -> range | list[int]:
        """Put what was appended since the last commit, all or nothing; returns the seqs.

        The batch is empty then, and may be filled again. Without items: an empty range. With keys
        a list: items that had been accepted before have the seqs of then.

        Raises what put_many() raises. Full, LockTimeout, NoSpace, Sealed, TypeError and ValueError
        (Closed too, but not TooLarge) leave the items here for another commit(), or to be dropped
        with a ResourceWarning; after any other error the batch is empty, and the error says whether
        they were put.
        """
        self._check_process()
        items, self._items = self._items, []
        keys, self._keys = self._keys[: len(items)], self._keys[len(items) :]
        given = keys if any(key is not None for key in keys) else None
        try:
            self.seqs = self._queue._put_encoded(items, timeout=self._timeout, keys=given)
        except (Full, LockTimeout, NoSpace, Sealed, TypeError, ValueError) as error:
            if not isinstance(error, TooLarge) and not getattr(error, "accepted", 0):
                self._items[:0] = items  # what another thread appended meanwhile stays behind them
                self._keys[:0] = keys
            raise
        return self.seqs

    def __len__(self) -> int:
        return len(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and (self._items or self.seqs is None):
                self.commit()
        finally:
            self._items, self._keys = [], []

    def __del__(self) -> None:
        items = getattr(self, "_items", None)  # absent when __init__ raised
        if items and self._pid == os.getpid():
            warnings.warn(
                f"{self._queue.path}: a batch was dropped without commit(): {len(items)} appended "
                "items were not put; use `with q.batch()` or call it",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                f"{self._queue.path}: this batch belongs to the parent process; start one here"
            )


def destroy(path: Path) -> None:
    """Remove the queue at `path` with all its items, and its semaphore.

    The directory goes too when nothing foreign is in it. Raises QueueInUse while any process, this
    one included, has the queue open: nothing is removed then. Raises NotAQueue, OSError.
    """
    name = _native.destroy(_absolute(path))
    if name:
        semaphore.unlink(name)


def inspect(path: Path) -> Inspection:
    """A read-only view of the queue at `path`; it never attaches and needs no live process.

    >>> with mpqueue.inspect("spool") as view:  # doctest: +SKIP
    ...     print(view.counts(), [record.body for record in view.items()])

    A context manager: it holds one descriptor, given back by `close()`, at the end of `with`, or
    when it is collected. Raises NotAQueue, FormatError, OSError.
    """
    from mpqueue import reader

    return reader.inspect(path)


def repair(path: Path, *, dry_run: bool = False) -> Repair:
    """Verify every byte, save damage in corrupt/, book each loss once, clear poison.

    Needs the queue alone: raises QueueInUse otherwise. dry_run only reports and changes nothing.
    """
    from mpqueue.stats import Repair

    fields = _native.repair(_absolute(path), dry_run)
    return Repair(**dict(zip(Repair.__annotations__, fields, strict=True)))
