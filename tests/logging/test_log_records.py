"""Goal: a record comes out of its JSON as the listener's formatters would have met it.

Method: records with every kind of content through `encode` and `decode`; bodies that are no record.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from mpqueue.logging import decode, encode


def _record(message: object = "hello %s", *args: object, **options: object) -> logging.LogRecord:
    logger = logging.getLogger("app.part")
    extra = options.pop("extra", None)
    return logger.makeRecord(
        "app.part",
        logging.ERROR,
        __file__,
        7,
        message,
        args,
        extra=extra,
        **{"exc_info": None, "func": "work", "sinfo": None, **options},
    )


def test_every_field_of_a_record_arrives() -> None:
    record = _record("%d of %s", 3, "four", extra={"request": "r-1", "sizes": [1, 2]})
    copy = decode(encode(record))
    expected = dict(vars(record), msg="3 of four", message="3 of four", args=None)
    assert {"taskName": None, **expected} == vars(copy)
    assert copy.getMessage() == "3 of four"


def test_a_formatter_at_the_far_end_shows_what_it_would_have_shown_here() -> None:
    formatter = logging.Formatter(
        "%(asctime)s %(levelname)s %(name)s %(process)d %(threadName)s %(filename)s:%(lineno)d "
        "%(funcName)s %(relativeCreated)d %(msecs)d %(message)s"
    )
    try:
        raise KeyError("deep")
    except KeyError:
        record = _record("100%% of %s", "it", exc_info=sys.exc_info(), sinfo="Stack:\n  here")
    before = dict(vars(record))
    body = encode(record)
    assert vars(record) == before, "other handlers get the record too"
    shown = formatter.format(decode(body))
    assert "KeyError: 'deep'" in shown and shown.endswith("Stack:\n  here")
    assert shown == formatter.format(record)


def test_a_formatter_of_the_handler_makes_the_whole_message() -> None:
    try:
        raise KeyError("deep")
    except KeyError:
        record = _record("told", exc_info=sys.exc_info())
    copy = decode(encode(record, logging.Formatter("<%(levelname)s> %(message)s")))
    assert copy.getMessage().startswith("<ERROR> told\nTraceback")
    assert copy.exc_text is None and record.exc_text is None


class _Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def test_values_that_json_does_not_know_become_text() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    values = {
        "path": Path("a/b"),
        "money": Decimal("1.10"),
        "stream": io.StringIO(),
        "pair": (1, 2),
        "mute": _Mute(),
        "keys": {(1, 2): 3, "good": [1]},
        "nan": float("nan"),
        "cycle": cycle,
        "deep": deep,
        "surrogate": "\ud800",
        "plain": {"a": [1, None, True, "x"]},
    }
    got = vars(decode(encode(_record("m", extra=values))))
    assert got["path"] == "a/b" and got["money"] == "1.10" and got["pair"] == [1, 2]
    assert got["mute"] == "<_Mute without text: RuntimeError>"
    assert got["nan"] == "nan" and got["plain"] == values["plain"]
    assert got["surrogate"] == "\ud800"
    assert "cycle" in got and "deep" in got and "(1, 2)" in str(got["keys"])
    json.loads(encode(_record("m", extra=values)), parse_constant=pytest.fail)  # strict JSON


def test_arguments_are_formatted_where_they_are() -> None:
    assert decode(encode(_record("%r", lambda: 1))).getMessage().startswith("<function")
    assert decode(encode(_record(_record))).getMessage().startswith("<function _record")


def test_an_extra_cannot_pose_as_a_field() -> None:
    value = json.loads(encode(_record("m")))
    value["extra"] = {"levelno": 1, "args": [1], "exc_info": 1, "user": "me"}
    copy = decode(json.dumps(value).encode())
    assert (copy.levelno, copy.args, copy.exc_info) == (logging.ERROR, None, None)
    assert vars(copy)["user"] == "me"


def test_other_programs_need_four_fields() -> None:
    body = b'{"name": "c", "levelno": 30, "message": "from afar 100%", "created": 1.5}'
    shown = logging.Formatter("%(levelname)s %(name)s %(msecs)03d %(message)s").format(decode(body))
    assert shown == "WARNING c 500 from afar 100%"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"a line",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"name": "c", "levelno": 30, "message": "m"}',
        b'{"name": "c", "levelno": 30, "message": "m", "created": "now"}',
        b'{"name": "c", "levelno": 30, "message": "m", "created": 1e300}',
        b'{"name": "c", "levelno": 30, "message": "m", "created": NaN}',
        b'{"name": "c", "levelno": true, "message": "m", "created": 1}',
        b'{"name": "c", "levelno": 30, "message": 5, "created": 1}',
        b'{"name": "c", "levelno": 30, "message": "m", "created": 1, "lineno": "x"}',
    ],
)
def test_what_is_no_record_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(body)
