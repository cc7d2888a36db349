"""Goal: an error says what happened, not what mostly happens.

Method: the same exception brought about in different ways, told apart by its text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue
from mpqueue.reader import verify


def test_a_nack_says_whether_the_item_was_acked_or_returned(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"1", b"2", b"3"])
    with q.consumer() as c:
        one, two, three = c.reserve_many(3)
        two.ack()
        with pytest.raises(mpqueue.StaleItem, match="seq 2 was acked: it cannot be given back"):
            two.nack()
        c.ack_up_to(2)
        with pytest.raises(mpqueue.StaleItem, match="seq 1 was acked: "):
            c.nack(one)
        c.nack(three)
        with pytest.raises(mpqueue.StaleItem, match="returned since this hand-out"):
            c.nack(three)
        assert c.take(0).body == b"3"
    assert len(q) == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [("nothing", "no such directory"), ("empty", "no file `meta`"), ("file", "not a directory")],
)
def test_what_is_no_queue_is_called_the_same_by_all(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / name
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    calls: tuple[Callable[[], object], ...] = (
        lambda: mpqueue.Queue(path, create=False),
        lambda: mpqueue.repair(path),
        lambda: mpqueue.destroy(path),
        lambda: mpqueue.inspect(path),
        lambda: verify(path),
    )
    said = set()
    for call in calls:
        with pytest.raises(mpqueue.NotAQueue, match=why) as refused:
            call()
        said.add(str(refused.value))
    assert len(said) == 1, said
    assert "check the path" in said.pop()


def test_a_missing_parent_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="its parent is not there"):
        mpqueue.Queue(tmp_path / "a" / "b")


def test_a_queue_without_a_codec_has_the_codec_bytes(open_queue: OpenQueue) -> None:
    q = open_queue()
    with pytest.raises(mpqueue.OptionsMismatch, match="has codec = bytes, not json;"):
        mpqueue.Queue(q.path, codec="json")
    q.close()
    mpqueue.destroy(q.path)
    other = open_queue(codec="json")
    with pytest.raises(mpqueue.OptionsMismatch, match="has codec = json, not bytes;"):
        mpqueue.Queue(other.path, codec="bytes")


@pytest.mark.parametrize("keyed", [False, True])
def test_a_put_in_parts_says_how_much_went_in(open_queue: OpenQueue, keyed: bool) -> None:
    q = open_queue(capacity=6000, key_window=10_000, durability="none")
    keys = [b"%d" % number for number in range(9000)] if keyed else None
    with pytest.raises(mpqueue.Full, match="; 4096 of 9000 items went in before") as full:
        q.put_many([b"x"] * 9000, atomic=False, block=False, keys=keys)
    assert full.value.accepted == len(q) == 4096
