"""Goal: an argument that cannot be is refused with a sentence, whichever call takes it.

Method: every call of the API that takes a number, a timeout or a size meets values that no number
can be, are negative, far too large, or of another type. It either does what it says or raises
ValueError or TypeError with a message; nothing else, and the queue goes on as before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from conftest import OpenQueue

NAN, INF = float("nan"), float("inf")
ODD: list[object] = [
    *(-1, -(2**63), -(2**70), -0.5, -INF, NAN),
    *(0, 1, True, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, 10**400, 1e300, INF),
    *("1", b"1", [], (), object(), 1j, None),
]

# Nothing here may wait: a first item is ready, and what is never settled is not waited for.
Call = Callable[[mpqueue.Queue, mpqueue.Consumer, Any], object]
CALLS: dict[str, Call] = {
    "put(timeout)": lambda q, c, x: q.put(b"x", timeout=x),
    "put(block)": lambda q, c, x: q.put(b"x", block=bool(x)),
    "put_many(timeout)": lambda q, c, x: q.put_many([b"x"], timeout=x),
    "put_many(atomic=False)": lambda q, c, x: q.put_many([b"x"], atomic=False, timeout=x),
    "batch(timeout)": lambda q, c, x: q.batch(timeout=x),
    "join(timeout)": lambda q, c, x: q.join(x) if x is not None and not x > 0 else None,
    "get(timeout)": lambda q, c, x: _settled(c.reserve(x)),
    "reserve": lambda q, c, x: _settled(c.reserve(x)),
    "take": lambda q, c, x: c.take(x),
    "wait": lambda q, c, x: c.wait(x),
    "reserve_many(n)": lambda q, c, x: _settled(*c.reserve_many(x, timeout=0)),
    "reserve_many(max_bytes)": lambda q, c, x: _settled(*c.reserve_many(1, max_bytes=x)),
    "reserve_many(linger)": lambda q, c, x: _settled(*c.reserve_many(1, linger=x)),
    "reserve_many(timeout)": lambda q, c, x: _settled(*c.reserve_many(1, timeout=x)),
    "ack_up_to": lambda q, c, x: c.ack_up_to(x),
    "consumer(wait)": lambda q, c, x: _another(q, x) if x is None or not x > 0 else None,
    "inspect.items": lambda q, c, x: list(mpqueue.inspect(q.path).items(x)),
}
OPTIONS = tuple(name for name in mpqueue.Options.__annotations__ if name != "durability")


def _settled(*items: mpqueue.Item | None) -> None:
    for item in items:
        if item is not None:
            item.ack()


def _another(q: mpqueue.Queue, wait: Any) -> None:
    with contextlib.suppress(mpqueue.ConsumerBusy):
        q.consumer(wait=wait)


def _refusal(call: Callable[[], object]) -> BaseException | None:
    """What it raised; a refusal says something. OutOfRange is one."""
    refused: BaseException | None = None
    try:
        call()
    except (ValueError, TypeError) as error:
        refused = error
    assert refused is None or str(refused)
    return refused


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_or_mean_what_they_say(open_queue: OpenQueue, name: str) -> None:
    q = open_queue(durability="none")
    with q.consumer() as c:
        for value in ODD:
            q.put(b"first")
            refused = _refusal(lambda value=value: CALLS[name](q, c, value))
            number = isinstance(value, (int, float))
            if number and not value >= 0 and name not in ("put(block)", "inspect.items"):
                assert refused is not None, value
        assert q.put(b"on") == q.stats().next_seq - 1
        _settled(*c.reserve_many(1000, timeout=0))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("place", ["creation", "change"])
def test_odd_options_are_refused_by_name(
    open_queue: OpenQueue, tmp_path: Path, name: str, place: str
) -> None:
    q = open_queue()
    for number, value in enumerate([*ODD, 0o1000, 4096, (), (-1.0,), (NAN,), ("a",), "group"]):
        path = tmp_path / f"q{number}"

        def set_it(value: object = value, path: Path = path) -> None:
            if place == "change":
                q.set_options(**{name: value})
            else:
                mpqueue.Queue(path, **{name: value}).close()
                mpqueue.destroy(path)

        refused = _refusal(set_it)
        if isinstance(value, (int, float)) and not value >= 0:
            assert refused is not None
            assert name in str(refused)
        assert not path.exists(), (value, refused)


def test_zero_does_not_stand_for_no_bound(spool: Path) -> None:
    """0 is how the files spell "none"; from a user it would mean the opposite of what it says."""
    for name in ("capacity", "max_bytes"):
        with pytest.raises(ValueError, match=name):
            mpqueue.Queue(spool, **{name: 0})
    with pytest.raises(ValueError, match="interval is 0: it takes seconds above 0"):
        mpqueue.Queue(spool, interval=0)
    assert not spool.exists()


@pytest.mark.parametrize("empty", ["", b""])
def test_an_empty_path_is_not_the_current_directory(
    empty: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue("") used to make a queue among whatever lies there."""
    monkeypatch.chdir(tmp_path)
    for call in (mpqueue.Queue, mpqueue.destroy, mpqueue.inspect, mpqueue.repair):
        with pytest.raises(ValueError, match="empty path"):
            call(empty)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", [None, 5, 1.5, [], "nul\0byte", b"nul\0byte"])
def test_paths_of_a_wrong_kind_are_refused(path: Any) -> None:
    for call in (mpqueue.Queue, mpqueue.destroy, mpqueue.inspect, mpqueue.repair):
        with pytest.raises((TypeError, ValueError)):
            call(path)


@pytest.mark.parametrize("wrong", [5, "print", b"", []])
def test_on_loss_must_be_callable(open_queue: OpenQueue, wrong: Any) -> None:
    q = open_queue()
    with pytest.raises(TypeError, match="on_loss"):
        q.consumer(on_loss=wrong)
    with pytest.raises(TypeError, match="on_loss"):
        mpqueue.Queue(q.path, on_loss=wrong)
    with q.consumer() as c, pytest.raises(TypeError, match="on_loss"):
        c.on_loss = wrong


def test_names_of_options_are_str(spool: Path) -> None:
    with mpqueue.Queue(spool) as q, pytest.raises(TypeError, match="names of options are str"):
        q._set_options({1: 2})  # type: ignore[dict-item]
