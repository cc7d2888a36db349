"""Goal: effect, mark and ack hold together, and what would part them is refused.

Method: real databases, each mode of their connections; marks counted from another connection.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from databases import Backend
from mpqueue import inbox as module
from mpqueue.inbox import Inbox, TransactionError

SQLITE_MODES: list[dict[str, Any]] = [
    {},
    {"isolation_level": None},
    {"isolation_level": "EXCLUSIVE"},
    *([{"autocommit": True}, {"autocommit": False}] if sys.version_info >= (3, 12) else []),
]


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    """Its puts do not wait for the disk."""
    return open_queue(durability="none")


def _effect(connection: Any, item: mpqueue.Item) -> None:
    connection.execute(f"INSERT INTO effects VALUES ({int(item.body)})")


def _drain(connection: Any, consumer: mpqueue.Consumer, inbox: Inbox) -> list[bool]:
    seen = []
    for item in consumer.drain():
        with inbox.once(item) as fresh:
            seen.append(fresh)
            if fresh:
                _effect(connection, item)
    return seen


def _put_twice(q: mpqueue.Queue) -> None:
    for body in (b"1", b"2", b"1"):
        q.put(body, headers={"once-id": f"key of {body.decode()}"})


def _used(backend: Backend, q: mpqueue.Queue, connection: Any) -> None:
    _put_twice(q)
    with q.consumer() as c, Inbox(connection, c) as inbox:
        assert _drain(connection, c, inbox) == [True, True, False]
        assert (inbox.fresh, inbox.repeats) == (2, 1)
    assert backend.effects() == [1, 2]
    assert len(q) == 0


@pytest.mark.parametrize("mode", SQLITE_MODES, ids=str)
def test_modes_of_sqlite3(sqlite: Backend, q: mpqueue.Queue, mode: dict[str, Any]) -> None:
    connection = sqlite.connect(**mode)
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    _used(sqlite, q, connection)


@pytest.mark.parametrize("autocommit", [False, True])
def test_modes_of_psycopg(postgres: Backend, q: mpqueue.Queue, autocommit: bool) -> None:
    import psycopg

    connection = postgres.connect(
        autocommit=autocommit,
        row_factory=psycopg.rows.dict_row,
        cursor_factory=psycopg.ClientCursor,
    )
    _used(postgres, q, connection)


def test_an_exception_undoes_the_effect_and_gives_the_item_back(
    backend: Backend, q: mpqueue.Queue
) -> None:
    connection = backend.connect()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        item = c.reserve(0)
        assert item is not None
        with pytest.raises(ZeroDivisionError), inbox.once(item) as fresh:
            assert fresh
            _effect(connection, item)
            raise ZeroDivisionError
        assert backend.effects() == []
        assert _drain(connection, c, inbox) == [True]
    assert backend.effects() == [1]


def test_several_items_in_one_transaction(backend: Backend, q: mpqueue.Queue) -> None:
    connection = backend.connect()
    _put_twice(q)
    q.put(b"3")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        with pytest.raises(ZeroDivisionError), inbox.once_many(c.reserve_many(4)) as fresh:
            _effect(connection, fresh[0])
            raise ZeroDivisionError
        assert q.stats().reserved_items == 0
        with inbox.once_many(c.reserve_many(4)) as fresh:
            assert [item.body for item in fresh] == [b"1", b"2", b"3"]
            for item in fresh:
                _effect(connection, item)
            assert backend.effects() == []
        assert len(q) == 0
    assert backend.effects() == [1, 2, 3]


def test_a_transaction_of_others_is_refused_and_left_alone(
    backend: Backend, q: mpqueue.Queue
) -> None:
    connection = backend.connect()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        connection.execute("INSERT INTO effects VALUES (7)")
        with (
            pytest.raises(TransactionError, match="begun before"),
            inbox.once(c.reserve(0)),
        ):
            pytest.fail("it was entered")
        connection.commit()
        assert _drain(connection, c, inbox) == [True]
    assert backend.effects() == [1, 7]


@pytest.mark.parametrize("end", ["commit", "rollback", "ROLLBACK", "again"])
def test_a_transaction_that_is_ended_inside_is_noticed(
    backend: Backend, q: mpqueue.Queue, end: str
) -> None:
    """Also when another one was begun since. What was committed with its mark is not repeated."""
    connection = backend.connect()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        item = c.reserve(0)
        assert item is not None
        with pytest.raises(TransactionError, match="ended inside"), inbox.once(item):
            _effect(connection, item)
            if end == "ROLLBACK":
                connection.execute(end)
            else:
                getattr(connection, "commit" if end == "again" else end)()
            if end == "again":
                connection.execute("INSERT INTO effects VALUES (9)")
        committed = end in ("commit", "again")
        assert _drain(connection, c, inbox) == [not committed]
    assert backend.effects() == [1]


def test_an_item_that_is_settled_inside_is_noticed(backend: Backend, q: mpqueue.Queue) -> None:
    connection = backend.connect()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        item = c.reserve(0)
        assert item is not None
        with pytest.raises(TransactionError, match="leave the ack to the block"), inbox.once(item):
            _effect(connection, item)
            item.ack()
        assert backend.effects() == [1]
        with pytest.raises(TransactionError, match="reserve it again"), inbox.once(item):
            pytest.fail("it was entered")


def test_an_error_of_the_database_that_was_swallowed_is_no_commit(
    postgres: Backend, q: mpqueue.Queue
) -> None:
    """PostgreSQL turns the commit of a failed transaction into a rollback without a word."""
    import psycopg

    connection = postgres.connect()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c) as inbox:
        item = c.reserve(0)
        assert item is not None
        with pytest.raises(psycopg.errors.InFailedSqlTransaction), inbox.once(item):
            _effect(connection, item)
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("SELECT * FROM nothing")
        assert len(q) == 1
        assert _drain(connection, c, inbox) == [True]
    assert postgres.effects() == [1]


def test_two_threads_with_one_item_do_its_effect_once(backend: Backend, q: mpqueue.Queue) -> None:
    """The second hand-out waits for the first one's transaction, then finds the mark."""
    q.put(b"1")
    seen: list[bool] = []
    with q.consumer() as c, Inbox(backend.connect(), c):  # makes the table

        def second() -> None:
            connection = backend.connect(**extra)
            inbox = Inbox(connection, c)
            entered.set()
            seen.extend(_drain(connection, c, inbox))

        extra = {"check_same_thread": False} if backend.kind == "sqlite" else {}
        entered = threading.Event()
        thread = threading.Thread(target=second)
        connection = backend.connect()
        first = Inbox(connection, c)
        item = c.reserve(0)
        assert item is not None
        with pytest.raises(TransactionError, match="settled inside"), first.once(item) as fresh:
            seen.append(fresh)
            if fresh:
                _effect(connection, item)
            item.nack()
            thread.start()
            entered.wait()
        thread.join()
    assert seen == [True, False]
    assert backend.effects() == [1]
    assert len(q) == 0


def test_marks_go_when_nothing_that_was_there_is_left(backend: Backend, q: mpqueue.Queue) -> None:
    connection = backend.connect()
    for body in (b"1", b"2", b"3", b"4"):
        q.put(body)
    with q.consumer() as c, Inbox(connection, c) as inbox:
        held = c.reserve(0)
        second = c.reserve(0)
        for item in (second, c.reserve(0)):
            assert item is not None
            with inbox.once(item):
                _effect(connection, item)
        inbox.prune()
        assert backend.count("mpqueue_inbox") == 2, "an item before them is still there"
        assert held is not None
        held.ack()
        inbox.prune()
        assert backend.count("mpqueue_inbox") == 2, "so is one behind them"
        assert _drain(connection, c, inbox) == [True]
    assert backend.count("mpqueue_inbox") == 0
    assert inbox.pruned == 3


def test_marks_stay_when_the_checkpoint_failed(
    sqlite: Backend, q: mpqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could bring their items back."""

    def fail(self: object) -> None:
        raise mpqueue.Poisoned(5, "no disk")

    connection = sqlite.connect()
    q.put(b"1")
    with q.consumer() as c:
        inbox = Inbox(connection, c)
        assert _drain(connection, c, inbox) == [True]
        with monkeypatch.context() as patched:
            patched.setattr(mpqueue.Consumer, "checkpoint", fail)
            with pytest.raises(mpqueue.Poisoned):
                inbox.prune()
        assert sqlite.count("mpqueue_inbox") == 1
        inbox.prune()
        assert sqlite.count("mpqueue_inbox") == 0


def test_a_poisoned_queue_is_drained_though_no_mark_can_go(
    sqlite: Backend, q: mpqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise mpqueue.Poisoned(5, "no disk")

    monkeypatch.setattr(module, "_PRUNE_EVERY", 1)
    q.put_many([b"1", b"2", b"3"])
    with q.consumer() as c:
        inbox = Inbox(sqlite.connect(), c)
        with monkeypatch.context() as patched:
            patched.setattr(mpqueue.Consumer, "checkpoint", fail)
            for item in c.drain():
                with inbox.once(item):
                    pass
        assert (len(q), sqlite.count("mpqueue_inbox")) == (0, 3)
        inbox.close()
    assert sqlite.count("mpqueue_inbox") == 0


def test_the_error_of_a_block_is_the_one_that_is_raised(sqlite: Backend, q: mpqueue.Queue) -> None:
    """Also when the item cannot be given back any more."""
    q.put(b"1")
    c = q.consumer()
    inbox = Inbox(sqlite.connect(), c)
    item = c.reserve(0)
    assert item is not None
    with pytest.raises(ZeroDivisionError), inbox.once(item):
        c.close()
        raise ZeroDivisionError


def test_marks_of_which_nothing_is_known_stay_for_a_time(
    backend: Backend, q: mpqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of keys that may be put again; those of a process that died; never a pending item's."""
    now = 1e9
    monkeypatch.setattr(module.time, "time", lambda: now)
    connection = backend.connect()
    q.put(b"1", headers={"once-id": "one"})
    q.put(b"2")
    with q.consumer() as c, Inbox(connection, c, keep=100) as inbox:
        first, second = c.reserve_many(2)
        with inbox.once(first):
            pass
        with monkeypatch.context() as patched:
            patched.setattr(mpqueue.Consumer, "ack", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError), inbox.once(second):
                pass
        now += 99
        inbox.prune()
        assert backend.count("mpqueue_inbox") == 2
        now += 2
        inbox.prune()
        assert backend.count("mpqueue_inbox") == 1, "the second item is still to be acked"
        second.nack()
        assert _drain(connection, c, inbox) == [False]
    assert backend.count("mpqueue_inbox") == 0


def test_pruning_comes_by_itself(
    sqlite: Backend, q: mpqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PRUNE_EVERY", 3)
    connection = sqlite.connect()
    with q.consumer() as c:
        inbox = Inbox(connection, c)
        for number in range(11):
            q.put(b"%d" % number)
            assert _drain(connection, c, inbox) == [True]
            assert 0 < sqlite.count("mpqueue_inbox") <= 6
    assert inbox.pruned >= 5
    assert sqlite.effects() == list(range(11))


def test_what_cannot_be_is_refused(sqlite: Backend, q: mpqueue.Queue) -> None:
    connection = sqlite.connect()
    with q.consumer() as c:
        for table in ("a-b", "", "x" * 32, 'x"', "a.b", 5):
            with pytest.raises(ValueError, match="no name of a table"):
                Inbox(connection, c, table=table)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="keep"):
            Inbox(connection, c, keep=0)
        with pytest.raises(TypeError, match=r"no sqlite3\.Connection"):
            Inbox("database", c)  # type: ignore[arg-type]
    assert sqlite.admin.execute("SELECT name FROM sqlite_master").fetchall() == [("effects",)]


def test_a_table_in_a_schema(postgres: Backend, q: mpqueue.Queue) -> None:
    connection = postgres.connect()
    schema = connection.execute("SELECT current_schema()").fetchone()[0]
    connection.rollback()
    q.put(b"1")
    with q.consumer() as c, Inbox(connection, c, table=f"{schema}.marks") as inbox:
        assert _drain(connection, c, inbox) == [True]
        assert postgres.count(f"{schema}.marks") == 1
