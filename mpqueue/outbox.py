"""An outbox: rows that a transaction of your database leaves for the queue, and their relay.

What has to be put because of a transaction is a row of a table, written by that transaction, or by
a trigger of a table that it changes. A relay puts committed rows into the queue and deletes them.

I1  A row is seen by the relay only when its transaction has committed: an abort emits nothing.
I2  A row is deleted only after the queue has it on disk. Nothing keeps a position in the table, so
    a row with a lower id that is committed later is not passed: it is simply there.
I3  Each row has a random key of its own, put as the header `once-id`: an inbox drops what a relay
    that died between put and delete puts again.
I4  Rows are put in the order of their ids. Whoever writes after he has seen another's commit
    has a higher id than that: order of commit in SQLite, where one writes at a time; in PostgreSQL
    order of commit except among transactions that ran at the same time.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from mpqueue import _database, _log
from mpqueue._begun import refuse_again
from mpqueue._database import TransactionError, WeakDurability
from mpqueue.exceptions import Full, LockTimeout, MpqueueError, TooLarge
from mpqueue.pipeline import claim_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from mpqueue._database import Connection, Database
    from mpqueue.queue import Queue

__all__ = ["Outbox", "Relay", "TransactionError", "WeakDurability"]

_TABLE = "mpqueue_outbox"
_ROOM_S = 1.0
_ROLE_S = 0.05


def _create(database: Database, table: str) -> str:
    name = database.table(table)
    columns = {
        "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT, "
        "key TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))), body BLOB NOT NULL",
        "postgres": "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "key TEXT NOT NULL DEFAULT gen_random_uuid()::text, body BYTEA NOT NULL",
    }[database.kind]
    statement = f"CREATE TABLE IF NOT EXISTS {name} ({columns}, headers TEXT, refused TEXT)"
    database.create(table, statement)
    return name


class Outbox:
    """The writer's side: rows for the queue, in the transaction that the connection is in.

    >>> outbox = Outbox(connection)  # doctest: +SKIP
    >>> with connection:  # doctest: +SKIP
    ...     connection.execute("UPDATE ...")
    ...     outbox.add(b"it happened")
    """

    def __init__(
        self, connection: Connection, *, table: str = _TABLE, allow_weak: bool = False
    ) -> None:
        """Use `table`, and make it when it is not there.

        connection: sqlite3's, or psycopg's (3, not asynchronous), outside of a transaction.
        allow_weak: go on with settings under which a power cut may take a commit back whose row
        was relayed already.

        Raises WeakDurability, TransactionError, ValueError for a name that cannot be, TypeError,
        and what the database raises.
        """
        self._database = _database.wrap(connection)
        self._name = table
        self._database.table(table)
        _database.require_durable(self._database, allow_weak)
        self._table = _create(self._database, table)

    def durability(self) -> dict[str, str]:
        """The settings of the database that decide whether a commit outlives a power cut."""
        return self._database.settings()[0]

    def add(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """One item for the queue, as bytes, if and when the current transaction commits.

        Raises TransactionError when there is none, nor one that the connection begins by itself;
        and what the database raises.
        """
        self._database.require_transaction()
        self._database.run(
            f"INSERT INTO {self._table} (body, headers) VALUES (?, ?)",
            [bytes(memoryview(body)), json.dumps(dict(headers)) if headers else None],
        )

    def watch(self, table: str) -> None:
        """From now on each row of `table` that is inserted, updated or deleted leaves an item.

        Its body is JSON: {"op": "insert", "update" or "delete", "table": name, "row": the row, as
        it was where it is deleted}. A trigger in the database does it, for every program that
        writes there. In SQLite it knows the columns of now: call this again after ALTER TABLE, and
        blobs are in hexadecimal.

        Makes the triggers in a transaction of its own. Raises TransactionError, ValueError, and
        what the database raises.
        """
        watched = self._database.table(table)
        with self._database.transaction():
            for statement in self._triggers(table, watched):
                self._database.run(statement)

    def _triggers(self, table: str, watched: str) -> list[str]:
        prefix = f"{self._name}_{table}".replace(".", "_")
        if self._database.kind == "postgres":
            query = (
                "SELECT format('%I.%I', nspname, relname), format('%I.%I', nspname, ?::text) "
                "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
                "WHERE pg_class.oid = to_regclass(?)"
            )
            name = self._name.rpartition(".")[2] + "_watch"
            # Whatever the search_path of those who fire it.
            outbox, function = self._database.read(query, [name, self._table])[0]
            return [
                f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ "
                f"BEGIN INSERT INTO {outbox} (body) VALUES (convert_to(json_build_object("
                "'op', lower(TG_OP), 'table', TG_TABLE_NAME, 'row', CASE TG_OP WHEN 'DELETE' THEN "
                "to_json(OLD) ELSE to_json(NEW) END)::text, 'UTF8')); RETURN NULL; END $$",
                f'DROP TRIGGER IF EXISTS "{prefix}" ON {watched}',
                f'CREATE TRIGGER "{prefix}" AFTER INSERT OR UPDATE OR DELETE ON {watched} '
                f"FOR EACH ROW EXECUTE FUNCTION {function}()",
            ]
        statements = []
        columns = [
            _database.text(row[1]) for row in self._database.read(f'PRAGMA table_info("{table}")')
        ]
        if not columns:
            raise ValueError(f"there is no table {table} to watch")
        for operation, row in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")):
            pairs = ", ".join(_json_pair(row, column) for column in columns)
            statements += [
                f'DROP TRIGGER IF EXISTS main."{prefix}_{operation}"',
                f'CREATE TRIGGER main."{prefix}_{operation}" AFTER {operation.upper()} '
                f'ON "{table}" BEGIN INSERT INTO "{self._name}" (body) VALUES (CAST(json_object('
                f"'op', '{operation}', 'table', '{table}', 'row', json_object({pairs})) AS BLOB)); "
                "END",
            ]
        return statements


def _json_pair(row: str, column: str) -> str:
    name = column.replace("'", "''")
    value = f'{row}."' + column.replace('"', '""') + '"'
    return f"'{name}', CASE typeof({value}) WHEN 'blob' THEN hex({value}) ELSE {value} END"


def _check(name: str, seconds: float) -> None:
    if not seconds >= 0:
        raise ValueError(f"{name} is {seconds}: it takes a number of seconds from 0 up")


class Relay:
    """The one that puts the rows of an outbox into a queue; one at a time for each table.

    >>> with Relay(connection, queue) as relay:  # doctest: +SKIP
    ...     relay.run()

    It holds no transaction of the database while it puts, and no lock of the queue but as any put.
    """

    relayed: int = 0
    """Rows that were put."""
    skipped: int = 0
    """Rows that were not put again: this relay had put them, but could not delete them."""
    refused: int = 0
    """Rows that the queue can never take; they stay in the table, with the reason in `refused`."""

    def __init__(
        self,
        connection: Connection,
        queue: Queue[Any],
        *,
        table: str = _TABLE,
        batch: int = 100,
        wait: float = 0.0,
    ) -> None:
        """Take the role of the relay of `table`, which is made when it is not there.

        connection: sqlite3's, or psycopg's (3, not asynchronous), outside of a transaction, for
        this alone. In PostgreSQL the role is a lock of its session.
        queue: gets the bytes of the rows; a handle with a codec has to be opened with raw=True.
        batch: at most so many rows are put before they are deleted.
        wait: seconds to stand by while another relay of this table runs.

        Raises BlockingIOError when another one has the role, ValueError, TypeError, and what the
        database raises.
        """
        refuse_again(self, "_release")
        if not batch >= 1:
            raise ValueError("batch is a number of rows, at least 1")
        _check("wait", wait)
        if queue._encode is not None:
            raise ValueError(
                f"{queue.path}: rows hold bytes as they are stored: open the queue with raw=True"
            )
        if queue.options.codec.endswith("+aes"):
            raise ValueError(f"{queue.path}: rows hold plaintext, and this queue is encrypted")
        self._database = _database.wrap(connection)
        self._queue = queue
        self._batch = batch
        self._table = _create(self._database, table)
        self._put: set[str] = set()
        self._release = self._take_role(table, time.monotonic() + wait)

    def _take_role(self, table: str, deadline: float) -> Callable[[], object]:
        while (release := self._database.try_role(table)) is None:
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"another relay of {table} is running: one is enough")
            time.sleep(_ROLE_S)
        return release

    def step(self, timeout: float = _ROOM_S) -> int:
        """Put what is committed, at most a batch, and delete it; returns how many rows are done.

        Waits for room at most `timeout` seconds for each row; the rest is for the next call.

        Raises what put, flush and the database raise: the rows that were not deleted come again.
        ValueError for a timeout that is none.
        """
        _check("timeout", timeout)  # put would refuse it too, which is taken for the row's fault
        rows = self._database.read(
            f"SELECT id, key, body, headers FROM {self._table} WHERE refused IS NULL "
            "ORDER BY id LIMIT ?",
            [self._batch],
        )
        done: dict[str, int] = {}
        refused: list[tuple[str, int]] = []
        try:
            for number, stored, body, headers in rows:
                key = _database.text(stored)
                try:
                    self._put_row(key, body, headers, timeout)
                except (Full, LockTimeout):
                    break
                except (TooLarge, TypeError, ValueError) as error:
                    if isinstance(error, MpqueueError) and not isinstance(error, TooLarge):
                        raise
                    refused.append((f"{type(error).__name__}: {error}", number))
                else:
                    done[key] = number
        finally:
            self._finish(done, refused)
        return len(done) + len(refused)

    def _put_row(self, key: str, body: Any, headers: Any, timeout: float) -> None:
        if key in self._put:
            self.skipped += 1
            return
        stored = json.loads(headers) if headers else {}
        data = body.encode() if isinstance(body, str) else body
        if claim_once(self._queue, data, stored, key, timeout):
            self.relayed += 1
        else:
            self.skipped += 1
        self._put.add(key)

    def _finish(self, done: dict[str, int], refused: list[tuple[str, int]]) -> None:
        if not (done or refused):
            return
        self._queue.flush()  # once for all of them
        with self._database.transaction():
            sql = f"DELETE FROM {self._table} WHERE id = ?"
            self._database.run_many(sql, [(number,) for number in done.values()])
            sql = f"UPDATE {self._table} SET refused = ? WHERE id = ?"
            self._database.run_many(sql, refused)
        self._put.difference_update(done)
        for reason, number in refused:
            self.refused += 1
            _log.warn("outbox %s: row %d can never be put: %s", self._table, number, reason)

    def run(
        self,
        *,
        interval: float = 0.1,
        until_empty: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """step() again and again, with a pause of `interval` seconds when no row is there.

        Returns when `stop()` is true, looked at after each step, or with until_empty when no row
        is left. A row that a full queue does not take waits. Raises what step() raises, ValueError
        for an interval that is none.
        """
        _check("interval", interval)
        while True:
            done = self.step()
            if stop() or (until_empty and not done and not self.pending()):
                return
            if not done:
                time.sleep(interval)

    def pending(self) -> int:
        """Rows that are to be put, without those that were refused."""
        query = f"SELECT count(*) FROM {self._table} WHERE refused IS NULL"
        return int(self._database.read(query)[0][0])

    def close(self) -> None:
        """Give the role back. Connection and queue stay open. Idempotent."""
        release, self._release = self._release, lambda: None
        release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
