"""Effectively once: the effect of an item and a mark of it in one transaction of your database.

An item that comes again, because its consumer died before the ack, finds its mark: the effect is
skipped and the item acked. The order is effect and mark, commit, ack, so that a death anywhere
leaves either nothing and the item, or the effect, its mark and the item, or the effect alone.

I1  A mark is committed with the effect or not at all. It is of an item in a queue: what is made of
    the item in the next queue has the same identity, and an effect of its own.
I2  An item is acked only after a commit that holds its mark has returned.
I3  A mark goes only when its item can no longer come: this inbox acked the item, a checkpoint made
    that ack durable, and everything that was in the queue then, copies of the item that a delay or
    a dead-letter queue may have made included, has been settled. Where that is not known, it stays
    for `keep` seconds, and while its item has not been settled where it lay: so do the marks of
    items that may be put twice (header `once-id`), and the newest ones of a consumer that died.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

from mpqueue import _database
from mpqueue._begun import refuse_again
from mpqueue._database import TransactionError, WeakDurability
from mpqueue.exceptions import Closed, Poisoned, StaleItem
from mpqueue.pipeline import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from mpqueue._database import Connection
    from mpqueue.consumer import Consumer, Item

__all__ = ["Inbox", "TransactionError", "WeakDurability"]

T = TypeVar("T")

_KEEP_S = 7 * 86400.0
_PRUNE_EVERY = 1000


class Inbox:
    """The marks of one consumer in the database of one connection.

    >>> with Inbox(connection, consumer) as inbox:  # doctest: +SKIP
    ...     for item in consumer:
    ...         with inbox.once(item) as fresh:
    ...             if fresh:
    ...                 connection.execute("UPDATE ...")

    It is used by one thread at a time, as its connection is; threads that share a consumer have a
    connection and an Inbox each, on the same table. Several queues may share a table.
    """

    fresh: int = 0
    """Items whose effect was committed here."""
    repeats: int = 0
    """Items that had been done before, and were acked without an effect."""
    pruned: int = 0
    """Marks that were removed here."""

    def __init__(
        self,
        connection: Connection,
        consumer: Consumer[Any],
        *,
        table: str = "mpqueue_inbox",
        keep: float = _KEEP_S,
        allow_weak: bool = False,
    ) -> None:
        """Use `table`, and make it when it is not there.

        connection: sqlite3's, or psycopg's (3, not asynchronous), outside of a transaction.
        keep: seconds for which a mark stays when it is not known that its item cannot come again.
        allow_weak: go on with settings under which a power cut may take a commit back after the
        ack became durable; the effect is lost then.

        Raises WeakDurability, TransactionError, ValueError for a name that cannot be, TypeError,
        and what the database raises.
        """
        refuse_again(self, "_table")
        if not keep > 0:
            raise ValueError("keep is a number of seconds above 0")
        self._database = _database.wrap(connection)
        self._consumer = consumer
        self._keep = keep
        self._acked: list[str] = []
        self._table = self._database.table(table)
        _database.require_durable(self._database, allow_weak)
        self._database.create(
            table,
            f"CREATE TABLE IF NOT EXISTS {self._table} (queue TEXT NOT NULL, id TEXT NOT NULL, "
            "seq BIGINT NOT NULL, marked_at DOUBLE PRECISION NOT NULL, settled_below BIGINT, "
            "PRIMARY KEY (queue, id))",
            self._database.index(table, "queue, settled_below"),
            self._database.index(table, "queue, marked_at"),
        )

    def durability(self) -> dict[str, str]:
        """The settings of the database that decide whether a commit outlives a power cut."""
        return self._database.settings()[0]

    @contextlib.contextmanager
    def once(self, item: Item[Any]) -> Iterator[bool]:
        """A transaction for the effect of `item`; True when it has to be done, False when it was.

        At its end the transaction is committed, then the item acked: do neither inside. On an
        exception all is rolled back and the item given back.

        Raises TransactionError when the connection is in a transaction already, when the block
        ended this one (what it committed then stays, with the mark, and is not done again), or
        when it settled the item; what the database raises; and, after the commit, what the ack
        raises: the item comes again and is dropped.
        """
        with self.once_many([item]) as fresh:
            yield bool(fresh)

    @contextlib.contextmanager
    def once_many(self, items: Iterable[Item[T]]) -> Iterator[list[Item[T]]]:
        """once() for several items in one transaction; gives those whose effect has to be done."""
        held = list(items)
        try:
            if any(item.settled for item in held):
                raise TransactionError("an item was settled before its effect: reserve it again")
            if len(self._acked) >= _PRUNE_EVERY:
                with contextlib.suppress(Poisoned):  # no ack can be made durable; the marks wait
                    self.prune()
            with self._database.transaction():
                fresh = [item for item in held if self._mark(item)]
                yield list(fresh)
        except BaseException:
            for item in held:
                if not item.settled:
                    with contextlib.suppress(StaleItem, Closed):
                        item.nack()
            raise
        self.fresh += len(fresh)
        self.repeats += len(held) - len(fresh)
        settled = [item.seq for item in held if item.settled]
        for item in held:
            self._ack(item)
        if settled:
            raise TransactionError(
                f"the item of seq {settled[0]} was settled inside the block. Its effect is "
                "committed; had the process died before that, it would be lost: leave the ack to "
                "the block, and raise an exception to give the item back"
            )

    def _mark(self, item: Item[Any]) -> bool:
        sql = (
            f"INSERT INTO {self._table} (queue, id, seq, marked_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (queue, id) DO NOTHING"
        )
        arguments = [self._consumer.queue.uuid, identity(item), item.seq, time.time()]
        return self._database.run(sql, arguments) == 1

    def _ack(self, item: Item[Any]) -> None:
        try:
            self._consumer.ack(item)
        except StaleItem:
            return  # in other hands by now, where its mark will be found
        if identity(item) == item.id:
            self._acked.append(item.id)

    def prune(self) -> None:
        """Remove the marks of items that cannot come again; once() calls it now and then.

        Makes all acks durable first (`consumer.checkpoint()`), and needs a transaction of its own.
        Raises what these raise; the marks are then still there.
        """
        # In this order: what the checkpoint persists is at least what was read before it.
        now = self._consumer.queue.stats()
        self._consumer.checkpoint()
        queue, table = self._consumer.queue.uuid, self._table
        acked = [(now.next_seq, queue, key) for key in self._acked]
        with self._database.transaction():
            if acked:
                sql = f"UPDATE {table} SET settled_below = ? WHERE queue = ? AND id = ?"
                self._database.run_many(sql, acked)
            gone = self._database.run(
                f"DELETE FROM {table} WHERE queue = ? AND settled_below <= ?", [queue, now.floor]
            )
            gone += self._database.run(
                f"DELETE FROM {table} WHERE queue = ? AND marked_at < ? AND seq < ?",
                [queue, time.time() - self._keep, now.floor],
            )
        self.pruned += gone
        self._acked.clear()

    def close(self) -> None:
        """prune(). Connection and consumer stay open."""
        self.prune()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
