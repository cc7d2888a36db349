"""Goal: docs/transactions.md is true. Method: run its examples in its order; look for each name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from mpqueue import inbox, pipeline

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


def _run(found: dict[str, Any]) -> None:
    for kind, block in BLOCKS:
        if kind == "python":
            exec(block, found)


def _bodies(queue: mpqueue.Queue) -> list[bytes]:
    with queue.consumer() as consumer:
        return [item.body for item in consumer.drain()]


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_the_examples_for_sqlite(here: dict[str, Any]) -> None:
    _run(here)
    rows = here["connection"].execute("SELECT what FROM sold").fetchall()
    assert rows == [("apples",)]
    assert _bodies(here["bills"]) == [b"bill for pears"]


def test_the_page_names_everything_public() -> None:
    names = [name for module in (inbox, pipeline) for name in module.__all__]
    for kind in (inbox.Inbox,):
        names += [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`{name}\b|\b{name}`", PAGE)] == []
