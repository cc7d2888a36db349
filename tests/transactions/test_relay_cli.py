"""Goal: `mpqueue relay` does what Relay does, and ends with the code that its page says.

Method: the program, over a database that a writer has filled.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from databases import Backend
from mpqueue.outbox import Outbox, Relay

CLI = [sys.executable, "-P", "-m", "mpqueue", "relay"]


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    """Its puts do not wait for the disk."""
    return open_queue(durability="none")


def _relay(*words: object) -> tuple[int, str, str]:
    done = subprocess.run([*CLI, *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def _fill(backend: Backend, count: int) -> None:
    writer = backend.connect()
    box = Outbox(writer)
    for number in range(count):
        box.add(b"%d" % number)
    writer.commit()


def test_until_empty(backend: Backend, q: mpqueue.Queue) -> None:
    _fill(backend, 3)
    place = f"--{backend.kind}", backend.place
    assert _relay(q.path, *place, "--until-empty", "--batch", 2) == (
        0,
        "",
        "mpqueue: 3 relayed, 0 skipped, 0 refused\n",
    )
    with q.consumer() as c:
        assert [item.body for item in c.drain()] == [b"0", b"1", b"2"]


def test_it_goes_on_until_a_signal(sqlite: Backend, q: mpqueue.Queue) -> None:
    words = [*CLI, q.path, "--sqlite", sqlite.place, "--interval", "1ms"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        with q.consumer() as c:
            for count in (1, 2):
                _fill(sqlite, count)
                for _ in range(count):
                    assert c.take(60) is not None
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        assert process.returncode == 143
        assert said == "mpqueue: 3 relayed, 0 skipped, 0 refused\n"


def test_exit_codes(sqlite: Backend, q: mpqueue.Queue, tmp_path: Path) -> None:
    until = "--sqlite", sqlite.place, "--until-empty"
    code, _, said = _relay(q.path, "--sqlite", tmp_path / "absent")
    assert (code, "there is no such file" in said) == (2, True)
    code, _, said = _relay(q.path, *until, "--table", "a b")
    assert (code, "no name of a table" in said) == (2, True)
    assert _relay(q.path)[0] == 2
    assert _relay(tmp_path / "nowhere", *until)[0] == 7
    with Relay(sqlite.connect(), q):
        code, _, said = _relay(q.path, *until)
        assert (code, "another relay" in said) == (4, True)
    _fill(sqlite, 1)
    q.seal()
    assert _relay(q.path, *until)[0] == 3
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"no database, " * 100)
    code, _, said = _relay(q.path, "--sqlite", rubbish)
    assert (code, "not a database" in said, "Traceback" in said) == (74, True, False)


def test_a_server_that_is_not_there(postgres: Backend, q: mpqueue.Queue, tmp_path: Path) -> None:
    code, _, said = _relay(q.path, "--postgres", f"host={tmp_path}")
    assert (code, "PostgreSQL: " in said, "Traceback" in said) == (74, True, False)
