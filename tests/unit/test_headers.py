"""Goal: headers travel as they were given, and what cannot be one is refused by its name before a
byte is written.

Method: every way to put that takes them; the bytes of the segments before and after. Items are read
back by the consumer and by the reader that shares no code with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.aio import AsyncQueue

Put = Callable[[mpqueue.Queue, Any], object]
ROOM = 65_528 - 4 - 4  # beside the entry's own header and that of one pair


def _awaited(q: mpqueue.Queue, headers: Any) -> int:
    return asyncio.run(AsyncQueue(q).put(b"x", headers=headers))


WAYS: dict[str, Put] = {
    "put": lambda q, headers: q.put(b"x", headers=headers),
    "put_nowait": lambda q, headers: q.put_nowait(b"x", headers=headers),
    "drop": lambda q, headers: q.put(b"x", on_full="drop", headers=headers),
    "aio": _awaited,
}


class Mapping:
    """Not a dict, with the one method that counts."""

    def __init__(self, *pairs: Any) -> None:
        self._pairs = pairs

    def items(self) -> list[Any]:
        return list(self._pairs)


GOOD = [
    {},
    {"a": "1", "B": "2", "a ": ""},
    {"": "", "\0": "\n", "\u00fc": "\U0001f600"},
    {"k": "v" * (ROOM - 1)},
    {"k" * ROOM: ""},
    {str(number): "x" for number in range(1000)},
]
BAD: list[tuple[Any, type[Exception], str]] = [
    ({"good": "x", "n": 1}, TypeError, "header 'n'"),
    ({7: "x"}, TypeError, "header 7"),
    ({"b": b"x"}, TypeError, "header 'b'"),
    ({"none": None}, TypeError, "header 'none'"),
    ({"half": "\ud800"}, ValueError, "header 'half'"),
    ({"\udfff": "x"}, ValueError, r"header '\\udfff'"),
    ({"k": "v" * ROOM}, ValueError, "header 'k' .* 65,528"),
    ({"a": "v" * 40_000, "second": "v" * 40_000}, ValueError, "header 'second' .* 65,528"),
    ("text", TypeError, "'text' is no mapping"),
    ([("a", "b")], TypeError, "is no mapping"),
    (5, TypeError, "5 is no mapping"),
    (Mapping("ab"), TypeError, "header 'ab' is no pair"),
    (Mapping(("a", "b", "c")), TypeError, "is no pair"),
]


@pytest.mark.parametrize("way", WAYS)
def test_headers_arrive_as_they_were_put(open_queue: OpenQueue, way: str) -> None:
    q = open_queue()
    for headers in GOOD:
        WAYS[way](q, headers)
    WAYS[way](q, Mapping(("a", "1")))
    wanted = [*GOOD, {"a": "1"}]
    with mpqueue.inspect(Path(q.path)) as view:
        assert [record.headers for record in view.items()] == wanted
    q.close()
    with open_queue() as again, again.consumer() as consumer:
        assert [item.headers for item in consumer.drain()] == wanted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_cannot_be_is_refused_by_name_and_writes_nothing(
    open_queue: OpenQueue, spool: Path, way: str, case: int
) -> None:
    headers, kind, words = BAD[case]
    q = open_queue(segment_size=1 << 16, max_members=16)
    q.put(b"first")
    before = {file: file.read_bytes() for file in spool.glob("segment-*")}
    with pytest.raises(kind, match=words):
        WAYS[way](q, headers)
    assert {file: file.read_bytes() for file in spool.glob("segment-*")} == before
    assert q.stats().items_dropped == 0
    assert q.put(b"next") == 2


def test_a_codec_leaves_headers_as_they_are(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json+zstd")
    q.put({"a": 1}, headers={"k": "v"})
    with mpqueue.inspect(Path(q.path)) as view:
        assert [record.headers for record in view.items()] == [{"k": "v"}]
