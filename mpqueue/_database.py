"""What inbox, outbox and relay ask of a database: SQLite by sqlite3, PostgreSQL by psycopg 3.

Owns the beginning and the end of a transaction on the user's connection, whichever way that
connection is set up to begin its own. Never closes the connection, never changes a setting of it,
never shares a transaction with somebody who began it elsewhere.

I1  What `transaction()` began is what its end commits. A savepoint set first and released last
    proves it: a commit or rollback inside the block takes the savepoint away.
I2  Rows are read as tuples, whatever row or cursor factory the connection has.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, Protocol

from mpqueue.exceptions import MpqueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import psycopg

    Connection = sqlite3.Connection | psycopg.Connection[Any]

_SYNCHRONOUS = ("off", "normal", "full", "extra")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}", re.ASCII)
_NAME_IN_SCHEMA = re.compile(rf"({_NAME.pattern}\.)?{_NAME.pattern}", re.ASCII)
_POINT = "mpqueue_point"


class WeakDurability(MpqueueError, ValueError):
    """The database may forget a commit in a power cut; nothing was done. `settings` says why."""

    settings: dict[str, str]
    """Its settings, as `durability()` reports them."""

    def __init__(self, message: str = "", settings: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.settings = settings or {}


class TransactionError(MpqueueError, RuntimeError):
    """The connection is in a transaction where it must not be, or the other way round."""


class Database(Protocol):
    """One connection. SQL is written with `?` for arguments."""

    kind: str
    """ "sqlite" or "postgres"."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """A transaction of its own: committed at the end, rolled back on any exception.

        Raises TransactionError when the connection is in one already, and at the end when the
        block ended it.
        """

    def require_transaction(self) -> None:
        """TransactionError when the next statement would be committed by itself."""

    def run(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """One statement; returns how many rows it changed."""

    def run_many(self, sql: str, arguments: Iterable[Sequence[object]]) -> None:
        """One statement for each sequence of arguments."""

    def read(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """One query in a transaction that is over when it returns."""

    def table(self, name: str) -> str:
        """The table's name as SQL. ValueError when it is not a plain one."""

    def index(self, table: str, columns: str) -> str:
        """A statement that makes an index when there is none on these columns."""

    def create(self, table: str, *statements: str) -> None:
        """Run the statements in one transaction, unless the table is there.

        Raises WeakDurability when it is one that does not outlive a crash.
        """

    def try_role(self, table: str) -> Callable[[], object] | None:
        """Take what one process has at a time for a table: a call that gives it back, or None."""

    def settings(self) -> tuple[dict[str, str], str]:
        """What decides whether a commit lasts, and in words why it may not ("" when it does)."""


def wrap(connection: Connection) -> Database:
    """The Database of a connection. TypeError for one of another kind."""
    if isinstance(connection, sqlite3.Connection):
        return Sqlite(connection)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return Postgres(connection)
    raise TypeError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no sqlite3.Connection "
        "and no psycopg.Connection (version 3, not its asynchronous one)"
    )


def _quoted(name: str, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(name, str) or pattern.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a table here: {what}")
    return ".".join(f'"{part}"' for part in name.split("."))


def _index_name(table: str, columns: str) -> str:
    return f'"{table.rpartition(".")[2]}_{re.sub("[^a-z]+", "_", columns)}"'


def require_durable(database: Database, allow_weak: bool) -> None:
    """WeakDurability when the settings are weak and that is not allowed."""
    settings, weakness = database.settings()
    if weakness and not allow_weak:
        raise WeakDurability(
            f"a commit here may be gone after a power cut: {weakness}; or pass allow_weak=True "
            "where that may be",
            settings,
        )


def text(value: Any) -> str:
    """TEXT of SQLite, whatever the text_factory of the connection."""
    return value.decode() if isinstance(value, bytes) else str(value)


class Sqlite:
    """sqlite3, in each of its modes: legacy with any isolation_level, autocommit on or off.

    With autocommit=False a transaction is open at any time, and nothing tells whether it was used:
    what was done in it before belongs to the next one here.
    """

    kind = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._inside = False

    @property
    def _always_open(self) -> bool:
        """Python 3.12's autocommit=False: the module begins anew after each commit."""
        return getattr(self._connection, "autocommit", None) is False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See Database. IMMEDIATE: it waits for its turn now, and no deadlock comes later."""
        if not self._always_open:
            if self._connection.in_transaction:
                raise TransactionError(
                    "the connection is in a transaction that was begun before: commit it or roll "
                    "it back first"
                )
            self.run("BEGIN IMMEDIATE")
        self._inside = True
        try:
            self.run(f"SAVEPOINT {_POINT}")
            yield
            try:
                self.run(f"RELEASE {_POINT}")
            except sqlite3.OperationalError as error:
                raise _ended_inside() from error
            if self._always_open:
                self._connection.commit()
            else:
                self.run("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self._always_open:
                    self._connection.rollback()
                elif self._connection.in_transaction:
                    self.run("ROLLBACK")
            raise
        finally:
            self._inside = False

    def require_transaction(self) -> None:
        """See Database."""
        connection = self._connection
        begins = connection.isolation_level is not None
        if getattr(connection, "autocommit", None) is True:
            begins = False
        if not (connection.in_transaction or begins or self._always_open):
            raise _not_begun()

    def run(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """See Database."""
        cursor = sqlite3.Cursor(self._connection)
        try:
            return cursor.execute(sql, arguments).rowcount
        finally:
            cursor.close()

    def run_many(self, sql: str, arguments: Iterable[Sequence[object]]) -> None:
        """See Database."""
        cursor = sqlite3.Cursor(self._connection)
        try:
            cursor.executemany(sql, arguments)
        finally:
            cursor.close()

    def read(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See Database."""
        cursor = sqlite3.Cursor(self._connection)
        try:
            return cursor.execute(sql, arguments).fetchall()
        finally:
            cursor.close()
            if self._always_open and not self._inside:
                self._connection.commit()  # else the next query would see what this one saw

    def table(self, name: str) -> str:
        """See Database. Of the main file: one that is attached commits by itself in a crash."""
        return "main." + _quoted(name, _NAME, "up to 31 letters, digits and _")

    def index(self, table: str, columns: str) -> str:
        """See Database."""
        name = _index_name(table, columns)
        return f'CREATE INDEX IF NOT EXISTS main.{name} ON "{table}" ({columns})'

    def create(self, table: str, *statements: str) -> None:
        """See Database."""
        query = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?"
        if not self.read(query, [table]):
            with self.transaction():
                for statement in statements:
                    self.run(statement)

    def _file(self) -> str:
        return next(
            text(row[2]) for row in self.read("PRAGMA database_list") if text(row[1]) == "main"
        )

    def try_role(self, table: str) -> Callable[[], object] | None:
        """See Database. A lock of a file beside the database: closing a descriptor of that itself
        would drop the locks that SQLite has on it."""
        file = self._file()
        if not file:
            return lambda: None  # of this connection alone
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(f"{file}-{table}-relay", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return functools.partial(os.close, descriptor)

    def settings(self) -> tuple[dict[str, str], str]:
        """See Database."""
        journal = text(self.read("PRAGMA main.journal_mode")[0][0])
        level = int(self.read("PRAGMA main.synchronous")[0][0])
        found = {
            "file": self._file(),
            "journal_mode": journal,
            "synchronous": _SYNCHRONOUS[level] if level < len(_SYNCHRONOUS) else str(level),
        }
        if not found["file"]:
            return found, "the database has no file, it ends with its process"
        if journal in ("memory", "off"):
            return found, (
                f"journal_mode is {journal}, so that even the death of a process inside a commit "
                "can damage the database; PRAGMA journal_mode=WAL mends it"
            )
        # Deleting the journal is the commit; only EXTRA syncs the directory after that.
        least = 3 if journal == "delete" else 2
        if level < least:
            return found, (
                f"synchronous is {found['synchronous']} with journal_mode {journal}; PRAGMA "
                "journal_mode=WAL and PRAGMA synchronous=FULL mend it"
                + (", or PRAGMA synchronous=EXTRA" if journal == "delete" else "")
            )
        return found, ""


class Postgres:
    """psycopg 3, autocommit or not."""

    kind = "postgres"

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        import psycopg

        self._connection = connection
        self._psycopg = psycopg

    def _require_idle(self) -> None:
        info, status = self._connection.info, self._psycopg.pq
        if info.pipeline_status != status.PipelineStatus.OFF:
            raise TransactionError("the connection is in pipeline mode: leave that first")
        if info.transaction_status != status.TransactionStatus.IDLE:
            raise TransactionError(
                "the connection is in a transaction that was begun before (without autocommit a "
                "SELECT begins one): commit it or roll it back first"
            )

    def _cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._psycopg.Cursor(self._connection, row_factory=self._psycopg.rows.tuple_row)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See Database."""
        self._require_idle()
        try:
            if self._connection.autocommit:
                self.run("BEGIN")
            self.run(f"SAVEPOINT {_POINT}")
            yield
            errors = self._psycopg.errors
            try:
                self.run(f"RELEASE SAVEPOINT {_POINT}")
            except (errors.InvalidSavepointSpecification, errors.NoActiveSqlTransaction) as error:
                raise _ended_inside() from error
            self._connection.commit()
        except BaseException:
            with contextlib.suppress(self._psycopg.Error):
                self._connection.rollback()
            raise

    def require_transaction(self) -> None:
        """See Database."""
        idle = self._psycopg.pq.TransactionStatus.IDLE
        if self._connection.autocommit and self._connection.info.transaction_status == idle:
            raise _not_begun()

    def run(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """See Database."""
        with self._cursor() as cursor:
            return cursor.execute(_formatted(sql), arguments).rowcount

    def run_many(self, sql: str, arguments: Iterable[Sequence[object]]) -> None:
        """See Database."""
        with self._cursor() as cursor:
            cursor.executemany(_formatted(sql), arguments)

    def read(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See Database."""
        began = self._connection.info.transaction_status
        with self._cursor() as cursor:
            rows = cursor.execute(_formatted(sql), arguments).fetchall()
        if began == self._psycopg.pq.TransactionStatus.IDLE:
            self._connection.rollback()
        return rows

    def table(self, name: str) -> str:
        """See Database. Without a schema it is found by the search_path."""
        what = "up to 31 letters, digits and _, and before them a schema and a dot"
        return _quoted(name, _NAME_IN_SCHEMA, what)

    def index(self, table: str, columns: str) -> str:
        """See Database."""
        name = _index_name(table, columns)
        return f"CREATE INDEX IF NOT EXISTS {name} ON {self.table(table)} ({columns})"

    def create(self, table: str, *statements: str) -> None:
        """See Database. Asks first: who may write there need not be allowed to create."""
        query = "SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(?)"
        found = self.read(query, [self.table(table)])
        if found and found[0][0] != "p":
            raise WeakDurability(f"{table} is UNLOGGED or TEMPORARY: a crash empties it")
        if found:
            return
        with self.transaction():
            # IF NOT EXISTS alone fails when two sessions create it at once.
            self.run("SELECT pg_advisory_xact_lock(hashtext(?))", ["mpqueue " + table])
            for statement in statements:
                self.run(statement)

    def try_role(self, table: str) -> Callable[[], object] | None:
        """See Database. A lock of the session."""
        arguments = "(hashtext('mpqueue relay'), hashtext(to_regclass(?)::oid::text))"
        name = [self.table(table)]
        if not self.read(f"SELECT pg_try_advisory_lock{arguments}", name)[0][0]:
            return None

        def release() -> None:
            with contextlib.suppress(self._psycopg.Error):  # the session has gone, and its locks
                self.read(f"SELECT pg_advisory_unlock{arguments}", name)

        return release

    def settings(self) -> tuple[dict[str, str], str]:
        """See Database."""
        names = ("synchronous_commit", "fsync", "full_page_writes")
        query = ", ".join(f"current_setting('{name}')" for name in names)
        found = dict(zip(names, self.read(f"SELECT {query}")[0], strict=True))
        weak = [name for name in names if found[name] == "off"]
        if weak:
            return found, f"{' and '.join(weak)} is off; SET it on, or in postgresql.conf"
        return found, ""


def _formatted(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _ended_inside() -> TransactionError:
    return TransactionError(
        "the transaction was ended inside the block (by commit(), rollback(), executescript() or "
        "`with connection:`): leave its end to the block"
    )


def _not_begun() -> TransactionError:
    return TransactionError(
        "the connection is not in a transaction and would commit this row by itself: begin one, "
        "and write what belongs together in it"
    )
