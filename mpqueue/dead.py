"""The dead letters of a queue: what was handed out too often, or was given up by hand.

They are a queue of the same format in `dead/`, made at the first move. The native half moves, each
letter durable there before it is acked here; here are the looks, the ways back and the sweep.

Looking needs no role. Moving letters back, and dropping them, takes the consumer role of `dead/`
for the time of the call, whoever consumes the queue itself.
"""

from __future__ import annotations

import os
import time

from mpqueue import _log
from mpqueue._begun import refuse_again
from mpqueue._record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from typing import Any, Generic

    from typing_extensions import TypeVar

    from mpqueue._native import Item
    from mpqueue.queue import Queue
    from mpqueue.reader import Inspection

    T = TypeVar("T", default=bytes)
    Select = Callable[["DeadLetter"], bool] | Container[int | str]
else:
    T = "T"
    Generic = {T: object}

__all__ = ["DeadLetter", "DeadLetters"]

DIRECTORY = "dead"


class DeadLetter(Record):
    """What is known of an item that was given up."""

    seq: int
    """Its number among the dead letters."""
    id: str
    """uuid:epoch:seq of the item that it was, the same as before and after."""
    body: bytes
    """The payload as it was stored."""
    headers: dict[str, str]
    """Its headers."""
    reason: str
    """"attempts" when max_attempts was reached, else what dead() was told."""
    attempts: int
    """How often it was handed out."""
    dead_at: float
    """Wall clock of the move, seconds."""
    first_failure: str | None
    """Text of the first failure that its last consumer saw, None when it saw none."""
    first_failed_at: float | None
    """Wall clock of it, seconds."""
    last_failure: str | None
    """Text of the newest failure."""
    last_failed_at: float | None
    """Wall clock of it, seconds."""


class DeadLetters(Generic[T]):
    """The dead letters of a queue: `q.dead`. Usable while the queue is open.

    A process that died while it moved an item may leave two letters with one id. redrive() puts one
    of them back and drops the other.
    """

    def __init__(self, queue: Queue[T]) -> None:
        """Use `queue.dead`."""
        refuse_again(self, "path")
        self._queue = queue
        self._opened: Queue[Any] | None = None
        self.path: str = os.path.join(queue.path, DIRECTORY)
        """The directory, which is there from the first move on."""

    @property
    def queue(self) -> Queue[Any] | None:
        """The queue that they are, opened; None when there never was one. Closed with its owner.

        Its items are bytes as they are stored, whatever the codec. Options of it, `capacity` for
        example, are set here. Raises what opening raises.
        """
        if self._queue.closed:
            self._close()
        elif self._opened is None or self._opened.closed:
            self._opened = None
            if os.path.exists(os.path.join(self.path, "meta")):
                self._opened = type(self._queue)(self.path, create=False, raw=True)
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __len__(self) -> int:
        """How many there are."""
        queue = self.queue
        return 0 if queue is None else len(queue)

    def __bool__(self) -> bool:
        """True, as a queue is: ask for len()."""
        return True

    # ---- looking

    def letters(self) -> Iterator[DeadLetter]:
        """All of them, oldest first, read from the files. Raises OSError, FormatError."""
        from mpqueue import reader

        if not os.path.exists(os.path.join(self.path, "meta")):
            return
        with reader.inspect(self.path) as view:
            yield from letters_of(view)

    def __iter__(self) -> Iterator[DeadLetter]:
        return self.letters()

    def peek(self) -> DeadLetter | None:
        """The oldest one, None when there is none."""
        return next(self.letters(), None)

    def value(self, letter: DeadLetter) -> T:
        """What was put: its body, decoded with the codec of the queue.

        CodecError when it cannot be; its `item` then has body, id and seq only.
        """
        from types import SimpleNamespace

        decode: Any = self._queue._decode
        if decode is None:
            return letter.body  # type: ignore[return-value]
        item = SimpleNamespace(body=letter.body, id=letter.id, seq=letter.seq, settled=True)
        return decode(item)  # type: ignore[no-any-return]

    # ---- moving and dropping

    def redrive(
        self, select: Select | None = None, *, limit: int | None = None, timeout: float | None = 0
    ) -> int:
        """Put letters back into the queue, as the items that they were; returns how many.

        select: a predicate, or seqs and ids of letters; None takes all. limit: at most so many.
        Each is put with its id, body and headers and without attempts, durably, and then acked
        here: killed in between, both are there. A second letter with the id of one that goes back
        is dropped. What is not selected stays as it was; the call holds it in memory meanwhile, and
        looks at the oldest `ack_window` letters at most.

        Waits up to `timeout` seconds for room, then Full; what went back before stays there. Raises
        ConsumerBusy while another process consumes or redrives the dead letters, ValueError for a
        limit or timeout below 0, and as put().
        """
        _check(timeout=timeout)
        back: set[str] = set()

        def put_back(consumer: Any, item: Item[Any], letter: DeadLetter) -> bool:
            if letter.id in back:
                item.ack()
                return False
            consumer._redrive(item, self._queue, timeout)
            back.add(letter.id)
            return True

        return self._each(select, limit, put_back)

    def drop(self, select: Select | None = None, *, limit: int | None = None) -> int:
        """Remove letters for good; returns how many. select and limit as for redrive()."""

        def remove(consumer: Any, item: Item[Any], letter: DeadLetter) -> bool:
            item.ack()
            return True

        return self._each(select, limit, remove)

    def purge(self) -> int:
        """Remove all of them for good; returns how many."""
        return self.drop()

    def sweep(self, *, older: float | None = None, keep: int | None = None) -> int:
        """Drop what is older than `older` seconds, and all but the newest `keep`; returns how many.

        older: the option dead_retain when it is None and `keep` too. `queue.checkpoint()` does this
        when the queue has dead_retain. Raises ValueError for one below 0, and as drop().
        """
        _check(older=older)
        _check_count(keep=keep)
        if older is None and keep is None:
            older = self._queue.options.dead_retain
        surplus = 0 if keep is None else max(0, len(self) - keep)
        dropped = self.drop(limit=surplus) if surplus else 0
        if older is not None:
            before = time.time() - older
            dropped += self.drop(lambda letter: letter.dead_at < before)
        return dropped

    def _sweep_quietly(self) -> None:
        """sweep(), whose failure is a WARNING."""
        try:
            if self._queue.options.dead_retain is not None and len(self):
                self.sweep()
        except Exception as error:
            _log.warn("%s: old dead letters could not be dropped: %s", self.path, error)

    def _each(
        self,
        select: Select | None,
        limit: int | None,
        act: Callable[[Any, Item[Any], DeadLetter], bool],
    ) -> int:
        _check_count(limit=limit)
        done = 0
        queue = self.queue
        if queue is None:
            return 0
        wanted = _predicate(select)
        with queue.consumer() as consumer:
            passed: list[Item[Any]] = []
            try:
                while limit is None or done < limit:
                    item = consumer.reserve(0)
                    if item is None:
                        break
                    passed.append(item)
                    letter = _letter_of(item)
                    if wanted(letter):
                        done += act(consumer, item, letter)
                        passed.pop()
            finally:
                for item in passed:
                    item._unreserve()
            consumer.checkpoint()
        return done

    def __repr__(self) -> str:
        return f"<mpqueue.DeadLetters {self.path!r}>"


def _check(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not value >= 0:
            raise ValueError(f"{name} is {value}: it takes a number from 0 up, or None")


def _check_count(**given: int | None) -> None:
    _check(**given)
    for name, value in given.items():
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {value}: it takes a whole number, or None")


def _predicate(select: Select | None) -> Callable[[DeadLetter], bool]:
    if select is None:
        return lambda letter: True
    if callable(select):
        return select
    chosen = select
    return lambda letter: letter.seq in chosen or letter.id in chosen


# ---- the extension


def letters_of(view: Inspection) -> Iterator[DeadLetter]:
    """The dead letters of an inspected `dead/`, oldest first."""
    for record in view.items():
        yield _letter(
            record.extension,
            seq=record.seq,
            id=record.id,
            body=record.body,
            headers=record.headers,
            dead_at=record.enqueued_at,
        )


def _letter_of(item: Item[Any]) -> DeadLetter:
    from mpqueue.reader.inspect import extension

    return _letter(
        extension(item._extension),
        seq=item.seq,
        id=item.id,
        body=bytes(item.body),
        headers=item.headers,
        dead_at=item.enqueued_at,
    )


def _letter(entries: Mapping[int, bytes], **known: object) -> DeadLetter:
    import struct

    from mpqueue import layout

    first_at, last_at, first, last = None, None, None, None
    history = entries.get(layout.EXT_HISTORY, b"")
    if len(history) >= 16:
        first_at, last_at = (ns / 1e9 for ns in struct.unpack_from("<QQ", history))
        first, _, last = history[16:].decode("utf-8", "replace").partition("\0")
    return DeadLetter(
        **known,
        reason=entries.get(layout.EXT_REASON, b"").decode("utf-8", "replace"),
        attempts=int.from_bytes(entries.get(layout.EXT_ATTEMPTS, b""), "little"),
        first_failure=first,
        first_failed_at=first_at,
        last_failure=last,
        last_failed_at=last_at,
    )
