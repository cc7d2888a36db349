"""Databases for tests: a file of SQLite, and a PostgreSQL server of their own.

The server lies in a temporary directory, listens on a unix socket only, and is run by an
unprivileged user when the tests are run by root, which it refuses.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SCHEMAS = itertools.count(1)


def binaries() -> Path | None:
    """Where initdb and postgres are: Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


def absent(reason: str) -> None:
    """Skips; fails where PostgreSQL was promised."""
    if os.environ.get("MPQ_PROOF") == "1" or os.environ.get("CI") == "true":
        pytest.fail(f"MPQ_PROOF=1 or CI=true, but {reason}")
    pytest.skip(reason)


class Server:
    """Runs until stop()."""

    def __init__(self, where: Path) -> None:
        # The path of a socket has room for 107 bytes, and another user has to get there.
        self._directory = Path(tempfile.mkdtemp(prefix="mpq-pg-", dir="/tmp"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(self._directory, entry.pw_uid, entry.pw_gid)
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        data = self._directory / "data"
        words = ["-A", "trust", "-U", "tester", "--no-sync", "--no-locale", "-E", "UTF8"]
        made = subprocess.run(
            [where / "initdb", "-D", data, *words],
            cwd=self._directory,
            capture_output=True,
            text=True,
            **self._user,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self._log = (self._directory / "log").open("wb")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._directory),
            "shared_buffers": "16MB",
            "max_connections": "20",
        }
        # A run of tests that is killed, or whose time is up, does not leave it behind.
        setpriv = shutil.which("setpriv")
        end_with_us = [setpriv, "--pdeathsig", "QUIT"] if setpriv else []
        self._process = subprocess.Popen(
            [*end_with_us, where / "postgres", "-D", data]
            + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")],
            cwd=self._directory,
            stdout=self._log,
            stderr=self._log,
            **self._user,
        )
        self.conninfo = f"host={self._directory} user=tester dbname=postgres"
        self._await()

    def _await(self) -> None:
        import psycopg

        while True:
            assert self._process.poll() is None, (self._directory / "log").read_text()
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.02)

    def stop(self) -> None:
        """Ends it at once, without a last checkpoint, and removes its files."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._directory)


class Backend:
    """A database with an empty table `effects (n)`; connections are closed with the test."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind = kind
        self.place = place
        self._open: list[Any] = []
        self.admin = self.connect()
        self.admin.execute("CREATE TABLE effects (n BIGINT)")
        self.admin.commit()

    def connect(self, **options: Any) -> Any:
        """A connection as a user would make it."""
        if self.kind == "sqlite":
            connection: Any = sqlite3.connect(self.place, timeout=30, **options)
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            if options.get("autocommit") is False:
                connection.commit()
        else:
            import psycopg

            connection = psycopg.connect(self.place, **options)
        self._open.append(connection)
        return connection

    def effects(self) -> list[int]:
        """All of them, sorted."""
        rows = self.admin.execute("SELECT n FROM effects ORDER BY n").fetchall()
        self.admin.rollback()
        return [row[0] for row in rows]

    def count(self, table: str) -> int:
        """Rows of a table."""
        number = self.admin.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        self.admin.rollback()
        return int(number)

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._open:
            connection.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running PostgreSQL; skips, with the reason, where there is none."""
    if importlib.util.find_spec("psycopg") is None:
        absent("there is no psycopg: pip install 'mpqueue[postgres]'")
    where = binaries()
    if where is None:
        absent("there is no PostgreSQL server: apt-get install postgresql")
    assert where is not None
    running = Server(where)
    yield running
    running.stop()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Backend]:
    """A database file."""
    backend = Backend("sqlite", str(tmp_path / "database"))
    yield backend
    backend.close()


@pytest.fixture
def postgres(server: Server) -> Iterator[Backend]:
    """A schema of its own."""
    import psycopg

    schema = f"test_{next(_SCHEMAS)}"
    with psycopg.connect(server.conninfo) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    backend = Backend("postgres", f"{server.conninfo} options='-c search_path={schema}'")
    yield backend
    backend.close()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of them."""
    found: Backend = request.getfixturevalue(request.param)
    return found
