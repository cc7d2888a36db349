"""Goal: settings under which a power cut takes a commit back are reported and refused.

Method: every journal mode with every level in SQLite; in PostgreSQL each setting switched off.
"""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from databases import Backend
from mpqueue.inbox import Inbox, WeakDurability
from mpqueue.outbox import Outbox

LEVELS = {"off": 0, "normal": 1, "full": 2, "extra": 3}
STRONG = {
    *(("wal", level) for level in ("full", "extra")),
    *(("truncate", level) for level in ("full", "extra")),
    *(("persist", level) for level in ("full", "extra")),
    ("delete", "extra"),
}


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    return open_queue(durability="none")


def _both(connection: Any, consumer: mpqueue.Consumer, strong: bool) -> dict[str, str]:
    """What both say; checks that they refuse what is weak, before they make a table."""
    if not strong:
        for make in (lambda: Inbox(connection, consumer), lambda: Outbox(connection)):
            with pytest.raises(WeakDurability, match="after a power cut") as caught:
                make()
            copy = pickle.loads(pickle.dumps(caught.value))
            assert (str(copy), copy.settings) == (str(caught.value), caught.value.settings)
        assert caught.value.settings
    box = Outbox(connection, allow_weak=not strong)
    inbox = Inbox(connection, consumer, allow_weak=not strong)
    assert box.durability() == inbox.durability()
    return inbox.durability()


@pytest.mark.parametrize("journal", ["delete", "truncate", "persist", "memory", "off", "wal"])
def test_each_setting_of_sqlite(tmp_path: Path, q: mpqueue.Queue, journal: str) -> None:
    with q.consumer() as c:
        for level, number in LEVELS.items():
            path = tmp_path / f"{journal}-{level}"
            connection = sqlite3.connect(path)
            connection.execute(f"PRAGMA journal_mode={journal}").fetchall()
            connection.execute(f"PRAGMA synchronous={number}")
            found = _both(connection, c, (journal, level) in STRONG)
            assert found == {"file": str(path), "journal_mode": journal, "synchronous": level}
            connection.close()


@pytest.mark.parametrize("name", [":memory:", ""])
def test_a_database_without_a_file(q: mpqueue.Queue, name: str) -> None:
    with q.consumer() as c:
        connection = sqlite3.connect(name)
        assert _both(connection, c, False)["file"] == ""
        connection.close()


@pytest.mark.parametrize("value", ["on", "local", "remote_write", "remote_apply", "off"])
def test_synchronous_commit(postgres: Backend, q: mpqueue.Queue, value: str) -> None:
    connection = postgres.connect(autocommit=True)
    connection.execute(f"SET synchronous_commit = {value}")
    with q.consumer() as c:
        found = _both(connection, c, value != "off")
    assert found == {"synchronous_commit": value, "fsync": "on", "full_page_writes": "on"}


@pytest.mark.parametrize("kind", ["UNLOGGED", "TEMPORARY"])
def test_a_table_that_a_crash_empties(postgres: Backend, q: mpqueue.Queue, kind: str) -> None:
    connection = postgres.connect(autocommit=True)
    connection.execute(f"CREATE {kind} TABLE marks (id TEXT)")
    with q.consumer() as c:
        for make in (
            lambda: Inbox(connection, c, table="marks"),
            lambda: Outbox(connection, table="marks"),
        ):
            with pytest.raises(WeakDurability, match="a crash empties it"):
                make()


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_settings_of_the_server(postgres: Backend, q: mpqueue.Queue, name: str) -> None:
    connection = postgres.connect(autocommit=True)

    def switch(value: str) -> None:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute(f"SHOW {name}").fetchone()[0] != value:
            pass

    switch("off")
    try:
        with q.consumer() as c:
            assert _both(connection, c, False)[name] == "off"
    finally:
        switch("on")
