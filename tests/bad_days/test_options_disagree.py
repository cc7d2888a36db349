"""Goal: an option that an existing queue does not have is refused by name, and nothing is touched.

Method: each option with another value than the queue's, on a closed queue (also one that would be
recovered) and on one that another process has open; the fingerprint stays equal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mpqueue
from mpqueue.options import Options
from rig import Child, advises, drain, make, untouched

MADE: dict[str, object] = {
    "segment_size": 1 << 16,
    "max_segments": 8,
    "keep_segments": 1,
    "capacity": 100,
    "max_bytes": 1 << 18,
    "max_item": 1 << 12,
    "durability": "group",
    "interval_items": 10,
    "interval": 0.25,
    "ack_window": 128,
    "ack_linger": 0.5,
    "max_members": 16,
    "retain": 0.0,
    "lease_timeout": None,
    "max_attempts": 7,
    "dead_retain": None,
    "key_window": 100,
    "codec": "bytes",
    "mode": 0o600,
}
OTHER: dict[str, object] = {
    "segment_size": 1 << 17,
    "max_segments": 9,
    "keep_segments": 2,
    "capacity": 101,
    "max_bytes": 1 << 19,
    "max_item": 1 << 13,
    "durability": "none",
    "interval_items": 11,
    "interval": 0.5,
    "ack_window": 192,
    "ack_linger": 0.25,
    "max_members": 17,
    "retain": 1.0,
    "lease_timeout": 1.0,
    "max_attempts": 8,
    "dead_retain": 1.0,
    "key_window": 200,
    "codec": "json",
    "mode": 0o660,
}
each = pytest.mark.parametrize("name", OTHER)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    make(path, [b"precious"] * 3, **MADE)
    return path


def _refused(path: Path, name: str) -> None:
    with untouched(path), pytest.raises(mpqueue.OptionsMismatch) as refused:
        mpqueue.Queue(path, **{name: OTHER[name]})
    assert isinstance(refused.value, ValueError)
    advises(refused.value, path, name, "leave the option out|has another", "set|another queue")


def test_every_option_is_tried() -> None:
    assert set(MADE) == set(OTHER) == set(Options.__annotations__)


@each
def test_option_that_disagrees_is_refused_untouched(made: Path, name: str) -> None:
    _refused(made, name)
    assert drain(made) == [b"precious"] * 3


@each
def test_option_that_disagrees_is_refused_before_any_recovery(
    made: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPQ_BOOT_ID", "another-boot")
    _refused(made, name)
    assert drain(made) == [b"precious"] * 3


@each
def test_option_that_disagrees_is_refused_beside_live_members(made: Path, name: str) -> None:
    with Child("q = mpqueue.Queue(args[0]); say('open'); listen(); q.put(b'on')", made) as other:
        assert other.hear() == "open"
        _refused(made, name)
        other.tell()
        other.ends()
    assert drain(made) == [b"precious"] * 3 + [b"on"]


def test_options_that_agree_open_it(made: Path) -> None:
    with mpqueue.Queue(made, **MADE) as q:
        assert {name: getattr(q.options, name) for name in MADE} == MADE


def test_options_fixed_at_creation_cannot_be_set(made: Path) -> None:
    with mpqueue.Queue(made) as q:
        for name in ("segment_size", "ack_window", "max_members", "mode"):
            with pytest.raises(ValueError, match=name) as refused:
                q.set_options(**{name: OTHER[name]})
            advises(refused.value, made, "another queue")
        q.set_options(capacity=101)
        with pytest.raises(ValueError, match="max_segments"):
            q.set_options(max_segments=1)
        assert (q.options.capacity, q.options.max_segments) == (101, 8)
    mpqueue.Queue(made, capacity=101).close()
    with pytest.raises(mpqueue.OptionsMismatch, match="capacity"):
        mpqueue.Queue(made, capacity=100)
