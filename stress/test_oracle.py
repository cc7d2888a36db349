"""Goal: the oracle itself bites. Method: small ledgers by hand, one lie in each."""

from __future__ import annotations

from pathlib import Path

import pytest

import oracle

GOOD = {
    "producer-1": "a 0 1 10\na 1 2 11\n",
    "cli-2": "13\n1",  # the second line was cut short by a kill
    "consumer-3": "r 100\nd 101 10 1 1 0\nk 102 10\nd 103 11 1 1 1\n",
    "consumer-4": "r 200\nd 201 11 2 1 1\nd 201 12 1 1 2\nn 202 12\nd 203 12 2 1 2\nk 204 11\n"
    "k 204 12\nd 205 13 1 2 0\nk 206 13\n",
    "boots": "",
}


def _judge(directory: Path, durability: str = "group", **changed: str) -> list[str]:
    for name, text in {**GOOD, **{key.replace("_", "-"): t for key, t in changed.items()}}.items():
        (directory / name).write_text(text)
    return oracle.judge(directory, durability).violations


def test_a_good_storm_has_no_violations(tmp_path: Path) -> None:
    assert _judge(tmp_path) == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"producer-1": "a 0 1 10\na 1 3 11\n"}, "LOST: producer 1 item 3 seq 13"),
        ({"cli-2": "13\n14\n"}, "LOST: producer 2 item 1 seq 14"),
        ({"producer-1": "a 0 1 10\na 1 2 12\n"}, "put said seq 12, delivered as 11"),
        ({"consumer-3": "r 100\nd 101 10 1 -1 -1\n"}, "not what any producer put"),
        ({"consumer-3": GOOD["consumer-3"] + "d 104 11 2 1 1\n"}, "without a nack"),
        ({"consumer-3": GOOD["consumer-3"] + "k 104 11\n"}, "delivered again after its ack"),
        ({"consumer-3": GOOD["consumer-3"] + "d 300 14 1 1 3\n"}, "at the same time"),
        ({"consumer-3": GOOD["consumer-3"] + "d 104 14 1 1 3\n"}, "first delivered after seq 14"),
        ({"consumer-3": "r 100\nd 101 10 1 1 1\nd 103 11 1 1 0\n"}, "item 0 out of order"),
        ({"consumer-3": "r 100\nd 101 10 1 1 0\nd 103 11 5 1 1\n"}, "attempts 2 did not grow"),
        ({"consumer-3": "r 100\nd 101 10 1 1 0\nd 102 11 1 1 0\n"}, "two seqs"),
    ],
)
def test_a_lie_is_found(tmp_path: Path, changed: dict[str, str], complaint: str) -> None:
    assert any(complaint in text for text in _judge(tmp_path, **changed))


def test_a_lost_boot_excuses_a_lost_ack_but_not_under_sync(tmp_path: Path) -> None:
    acked = {"consumer-3": GOOD["consumer-3"] + "k 104 11\n", "boots": "b 150\n"}
    assert _judge(tmp_path, **acked) == []
    assert _judge(tmp_path, "sync", **acked) != []
