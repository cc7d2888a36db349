"""Goal: what was committed is relayed, what was aborted is not, and no late commit is passed by.

Method: real databases, connections that overlap, and relays that fail between put and delete.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from databases import Backend
from mpqueue import _database
from mpqueue.inbox import Inbox
from mpqueue.outbox import Outbox, Relay, TransactionError


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    """Its puts do not wait for the disk."""
    return open_queue(durability="none")


def _taken(q: mpqueue.Queue) -> list[bytes]:
    with q.consumer() as c:
        return [item.body for item in c.drain()]


def _relayed(backend: Backend, q: mpqueue.Queue, **options: Any) -> list[bytes]:
    with Relay(backend.connect(), q, **options) as relay:
        relay.run(until_empty=True)
    assert backend.count("mpqueue_outbox") == 0
    return _taken(q)


def test_only_what_was_committed_is_relayed(backend: Backend, q: mpqueue.Queue) -> None:
    connection = backend.connect()
    box = Outbox(connection)
    box.add(b"aborted")
    connection.rollback()
    box.add(b"one")
    box.add(bytearray(b""))
    box.add(b"\0\xff", {"kind": "x"})
    with Relay(backend.connect(), q) as relay:
        assert relay.step() == 0
        connection.commit()
        assert relay.step() == 3
        assert q.stats().unsynced_items == 0, "deleted there, and not on the disk here"
        assert relay.step() == 0
        assert (relay.relayed, relay.skipped, relay.refused) == (3, 0, 0)
    with q.consumer() as c:
        items = c.reserve_many(9)
        assert [item.body for item in items] == [b"one", b"", b"\0\xff"]
        headers = [dict(item.headers) for item in items]
        assert len({found.pop("once-id") for found in headers}) == 3
        assert headers == [{}, {}, {"kind": "x"}]


def test_a_row_of_its_own_transaction_is_refused(sqlite: Backend) -> None:
    modes: list[dict[str, Any]] = [{"isolation_level": None}]
    if sys.version_info >= (3, 12):
        modes.append({"autocommit": True})
    for mode in modes:
        connection = sqlite.connect(**mode)
        box = Outbox(connection)
        with pytest.raises(TransactionError, match="not in a transaction"):
            box.add(b"x")
        connection.execute("BEGIN")
        box.add(b"x")
        connection.execute("ROLLBACK")
    assert sqlite.count("mpqueue_outbox") == 0


def test_a_row_of_its_own_transaction_is_refused_by_postgres(postgres: Backend) -> None:
    connection = postgres.connect(autocommit=True)
    box = Outbox(connection)
    with pytest.raises(TransactionError, match="not in a transaction"):
        box.add(b"x")
    with connection.transaction():
        box.add(b"x")
    assert postgres.count("mpqueue_outbox") == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit from 3.12 on")
def test_a_connection_that_is_always_in_a_transaction(sqlite: Backend, q: mpqueue.Queue) -> None:
    """A relay on one sees what is committed later."""
    writer = sqlite.connect(autocommit=False)
    box = Outbox(writer)
    with Relay(sqlite.connect(autocommit=False), q) as relay:
        for body in (b"1", b"2"):
            assert relay.step() == 0
            box.add(body)
            writer.commit()
            assert relay.step() == 1
    assert _taken(q) == [b"1", b"2"]


def test_order_is_that_of_the_commits_in_sqlite(sqlite: Backend, q: mpqueue.Queue) -> None:
    connections = [sqlite.connect() for _ in range(3)]
    boxes = [Outbox(connection) for connection in connections]
    wanted = []
    for number in range(12):
        connection, box = connections[number % 3], boxes[number % 3]
        box.add(b"%d" % number)
        if number % 4 == 3:
            connection.rollback()
        else:
            connection.commit()
            wanted.append(b"%d" % number)
    assert _relayed(sqlite, q, batch=2) == wanted


def test_a_lower_id_that_is_committed_later_is_not_lost(
    postgres: Backend, q: mpqueue.Queue
) -> None:
    early, late = postgres.connect(), postgres.connect()
    first, second = Outbox(early), Outbox(late)
    first.add(b"lower id")
    second.add(b"higher id")
    late.commit()
    with Relay(postgres.connect(), q) as relay:
        assert relay.step() == 1
        early.commit()
        assert relay.step() == 1
    assert _taken(q) == [b"higher id", b"lower id"]


def test_what_was_put_but_not_deleted_is_skipped(
    backend: Backend, q: mpqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the relay that lives; the inbox drops it when another relay puts it again."""
    writer, connection = backend.connect(), backend.connect()
    box = Outbox(writer)
    box.add(b"1")
    box.add(b"2")
    writer.commit()
    kind = _database.Sqlite if backend.kind == "sqlite" else _database.Postgres

    def fail(*_: object) -> None:
        raise ConnectionError

    relay = Relay(connection, q)
    with monkeypatch.context() as patched:
        patched.setattr(kind, "run_many", fail)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                relay.step()
    assert (relay.relayed, relay.skipped, relay.pending()) == (2, 2, 2)
    relay.close()
    with Relay(backend.connect(), q) as again:  # knows nothing of it
        assert again.step() == 2
        assert again.relayed == 2
    assert relay.step() == 0
    reader = backend.connect()
    with q.consumer() as c, Inbox(reader, c) as inbox:
        seen = []
        for item in c.drain():
            with inbox.once(item) as fresh:
                seen.append((item.body, fresh))
    assert seen == [(b"1", True), (b"2", True), (b"1", False), (b"2", False)]


def test_a_row_that_can_never_be_put_does_not_hold_up_the_others(
    backend: Backend, open_queue: OpenQueue, caplog: pytest.LogCaptureFixture
) -> None:
    q = open_queue(durability="none", max_item=10)
    writer = backend.connect()
    box = Outbox(writer)
    box.add(b"x" * 11)
    box.add(b"1", {"long": "x" * 70000})
    box.add(b"2")
    writer.commit()
    with Relay(backend.connect(), q) as relay, caplog.at_level(logging.WARNING, "mpqueue"):
        relay.run(until_empty=True)
        assert (relay.relayed, relay.refused, relay.pending()) == (1, 2, 0)
    assert _taken(q) == [b"2"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    rows = backend.admin.execute("SELECT refused FROM mpqueue_outbox ORDER BY id").fetchall()
    assert "max_item" in rows[0][0]
    assert "65,528" in rows[1][0] or "65528" in rows[1][0]


def test_a_full_queue_is_waited_for(sqlite: Backend, open_queue: OpenQueue) -> None:
    q = open_queue(durability="none", capacity=2)
    writer = sqlite.connect()
    box = Outbox(writer)
    for number in range(5):
        box.add(b"%d" % number)
    writer.commit()
    got = []
    with Relay(sqlite.connect(), q) as relay, q.consumer() as c:
        while relay.pending():
            assert relay.step(timeout=0) <= 2
            got += [item.body for item in c.drain()]
    assert got == [b"0", b"1", b"2", b"3", b"4"]


def test_a_queue_that_ends_ends_the_relay_and_nothing_is_lost(
    sqlite: Backend, q: mpqueue.Queue
) -> None:
    writer = sqlite.connect()
    Outbox(writer).add(b"1")
    writer.commit()
    q.seal()
    with Relay(sqlite.connect(), q) as relay, pytest.raises(mpqueue.Sealed):
        relay.run()
    q.seal(undo=True)
    assert _relayed(sqlite, q) == [b"1"]


def test_one_relay_at_a_time(backend: Backend, q: mpqueue.Queue) -> None:
    with Relay(backend.connect(), q) as first:
        with pytest.raises(BlockingIOError, match="another relay"):
            Relay(backend.connect(), q)
        Relay(backend.connect(), q, table="another").close()
        first.close()
        with Relay(backend.connect(), q, wait=1):
            first.close()
            with pytest.raises(BlockingIOError, match="another relay"):
                Relay(backend.connect(), q)


def test_run_ends_when_it_is_told(sqlite: Backend, q: mpqueue.Queue) -> None:
    asked = []
    with Relay(sqlite.connect(), q) as relay:
        relay.run(interval=0, stop=lambda: asked.append(1) or len(asked) == 3)
    assert len(asked) == 3


def test_a_trigger_writes_for_everybody(backend: Backend, q: mpqueue.Queue) -> None:
    connection = backend.connect()
    blob = "BLOB" if backend.kind == "sqlite" else "BYTEA"
    connection.execute(f"CREATE TABLE orders (id BIGINT PRIMARY KEY, name TEXT, raw {blob})")
    connection.commit()
    box = Outbox(connection)
    for _ in range(2):  # twice is once
        box.watch("orders")
    other = backend.connect()
    for statement in (
        "INSERT INTO orders VALUES (1, 'it''s', NULL)",
        "UPDATE orders SET name = 'b' WHERE id = 1",
        "DELETE FROM orders",
    ):
        other.execute(statement)
        other.commit()
        other.execute("INSERT INTO orders VALUES (2, 'aborted', NULL)")
        other.rollback()
    bodies = [json.loads(body) for body in _relayed(backend, q)]
    assert [(body["op"], body["table"], body["row"]) for body in bodies] == [
        ("insert", "orders", {"id": 1, "name": "it's", "raw": None}),
        ("update", "orders", {"id": 1, "name": "b", "raw": None}),
        ("delete", "orders", {"id": 1, "name": "b", "raw": None}),
    ]


def test_a_trigger_of_odd_columns_and_blobs(sqlite: Backend, q: mpqueue.Queue) -> None:
    connection = sqlite.connect()
    connection.execute("""CREATE TABLE odd ("a ""b'" BLOB)""")
    connection.commit()
    box = Outbox(connection)
    box.watch("odd")
    connection.execute("INSERT INTO odd VALUES (x'00ff')")
    connection.commit()
    (body,) = _relayed(sqlite, q)
    assert json.loads(body)["row"] == {"a \"b'": "00FF"}
    with pytest.raises(ValueError, match="no table nothing"):
        box.watch("nothing")


def test_a_trigger_finds_the_outbox_from_any_schema(postgres: Backend, q: mpqueue.Queue) -> None:
    connection = postgres.connect()
    box = Outbox(connection)
    box.watch("effects")
    schema = connection.execute("SELECT current_schema()").fetchone()[0]
    connection.execute("SET search_path = public")
    connection.execute(f"INSERT INTO {schema}.effects VALUES (3)")
    connection.commit()
    (body,) = _relayed(postgres, q)
    assert json.loads(body) == {"op": "insert", "table": "effects", "row": {"n": 3}}


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_what_is_no_time_is_refused(sqlite: Backend, q: mpqueue.Queue, bad: float) -> None:
    """nan once waited for ever, and a timeout that is none was taken for the fault of each row."""
    connection = sqlite.connect()
    Outbox(connection).add(b"row")
    connection.commit()
    with pytest.raises(ValueError, match="wait is"):
        Relay(sqlite.connect(), q, wait=bad)
    with Relay(sqlite.connect(), q) as relay:
        with pytest.raises(ValueError, match="interval is"):
            relay.run(interval=bad, until_empty=True)
        with pytest.raises(ValueError, match="timeout is"):
            relay.step(bad)
        assert (relay.refused, relay.step()) == (0, 1)


def test_what_cannot_be_is_refused(sqlite: Backend, q: mpqueue.Queue, spool: Any) -> None:
    connection = sqlite.connect()
    with pytest.raises(ValueError, match="batch"):
        Relay(connection, q, batch=0)
    with pytest.raises(ValueError, match="no name of a table"):
        Outbox(connection, table="a b")
    box = Outbox(connection)
    with pytest.raises(TypeError):
        box.add("text")  # type: ignore[arg-type]
    connection.rollback()
    other = spool.with_name("typed")
    with mpqueue.Queue(other, codec="json", segment_size=1 << 20, durability="none") as typed:
        with pytest.raises(ValueError, match="raw=True"):
            Relay(connection, typed)
        box.add(b'{"a": 1}')
        connection.commit()
        with mpqueue.Queue(other, raw=True) as raw, Relay(sqlite.connect(), raw) as relay:
            relay.run(until_empty=True)
        assert typed.get() == {"a": 1}
    mpqueue.destroy(other)


def test_text_that_a_hand_has_written(sqlite: Backend, q: mpqueue.Queue) -> None:
    Outbox(sqlite.connect())
    hand = sqlite3.connect(sqlite.place)
    hand.execute("INSERT INTO mpqueue_outbox (body, headers) VALUES ('text', 'no json')")
    hand.execute("INSERT INTO mpqueue_outbox (body, headers) VALUES ('text', '{\"a\": \"b\"}')")
    hand.commit()
    hand.close()
    with Relay(sqlite.connect(), q) as relay:
        relay.run(until_empty=True)
        assert (relay.relayed, relay.refused) == (1, 1)
    assert _taken(q) == [b"text"]
