"""Goal: docs/transactions.md is true. Method: run its examples in its order; look for each name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from databases import Backend
from mpqueue import inbox, outbox, pipeline

PAGE = (Path(__file__).resolve().parents[2] / "docs/transactions.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the examples, which work in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    yield found
    for value in found.values():
        if isinstance(value, mpqueue.Queue):
            value.close()
            mpqueue.destroy(value.path)
    found["connection"].close()


def _run(found: dict[str, Any], of_postgres: bool = False) -> None:
    for kind, block in BLOCKS:
        if kind == "python" and (of_postgres or "psycopg" not in block):
            exec(block, found)


def _bodies(queue: mpqueue.Queue) -> list[bytes]:
    with queue.consumer() as consumer:
        return [item.body for item in consumer.drain()]


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_the_examples_for_sqlite(here: dict[str, Any]) -> None:
    _run(here)
    rows = here["connection"].execute("SELECT what FROM sold").fetchall()
    assert rows == [("apples",), ("plums",), ("cherries",)]
    assert _bodies(here["bills"]) == [b"bill for pears"]
    assert _bodies(here["spool"]) == [
        b"plums",
        b'{"op":"insert","table":"sold","row":{"what":"cherries"}}',
    ]


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_the_examples_for_postgres(
    here: dict[str, Any], postgres: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = dict(part.split("=", 1) for part in postgres.place.split(" ", 3))
    monkeypatch.setenv("PGHOST", parts["host"])
    monkeypatch.setenv("PGUSER", parts["user"])
    monkeypatch.setenv("PGDATABASE", parts["dbname"])
    monkeypatch.setenv("PGOPTIONS", parts["options"].strip("'"))
    _run(here, of_postgres=True)
    assert _bodies(here["spool"])[-1] == b"grapes"
    assert postgres.count("sold") == 1


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_the_example_for_the_shell(here: dict[str, Any], tmp_path: Path) -> None:
    _run(here)
    here["outbox"].add(b"figs")
    here["connection"].commit()
    lines = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
    for line in lines:
        assert line.startswith("mpqueue ")
        if "--postgres" not in line:
            words = line.split()[1:] + (["--until-empty"] if "relay" in line else [])
            command = [sys.executable, "-P", "-m", "mpqueue", *words]
            subprocess.run(command, check=True, cwd=tmp_path, env=dict(os.environ))
    assert _bodies(here["spool"])[-1] == b"figs"


def test_the_page_names_everything_public() -> None:
    names = [name for module in (inbox, outbox, pipeline) for name in module.__all__]
    for kind in (inbox.Inbox, outbox.Outbox, outbox.Relay):
        names += [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`{name}\b|\b{name}`", PAGE)] == []
