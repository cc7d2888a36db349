"""A log record as bytes: one JSON object in ASCII, and back.

The message is formatted by the process that logged it, so its arguments need not be serialisable.
What else a record carries is kept as JSON where it can be, else as text.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpqueue import Item

__all__ = ["decode", "encode"]

_OWN_NAME = "mpqueue.logging"

_NOTHING = type(None)
_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "levelno": (int,),
    "levelname": (str, _NOTHING),
    "message": (str,),
    "created": (float, int),
    "msecs": (float, int, _NOTHING),
    "relativeCreated": (float, int, _NOTHING),
    "pathname": (str, _NOTHING),
    "filename": (str, _NOTHING),
    "module": (str, _NOTHING),
    "lineno": (int, _NOTHING),
    "funcName": (str, _NOTHING),
    "process": (int, _NOTHING),
    "processName": (str, _NOTHING),
    "thread": (int, _NOTHING),
    "threadName": (str, _NOTHING),
    "taskName": (str, _NOTHING),
    "exc_text": (str, _NOTHING),
    "stack_info": (str, _NOTHING),
}
"""Fields of the object and their types; those that may be null may also be absent. One more,
`extra`, is an object with every other attribute of the record."""

_COPIED = tuple(name for name in _FIELDS if name not in ("message", "exc_text", "stack_info"))
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {*_FIELDS, "asctime", "msg"}
_CREATED_MAX = 253_402_300_799  # the last second of the year 9999: what a time stamp can show

_plain = logging.Formatter()


def _text(value: object) -> str:
    """What stands for a value that JSON does not know."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


_encoder = json.JSONEncoder(separators=(",", ":"), default=_text, allow_nan=False)
_decoder = json.JSONDecoder()


def _as_json(values: dict[str, Any]) -> str:
    try:
        return _encoder.encode(values)
    except Exception:  # a key that is no string, a cycle, NaN, too deep, an object that raises
        return _encoder.encode({key: _safe(value, key == "extra") for key, value in values.items()})


def _safe(value: Any, is_extra: bool) -> Any:
    """The value when JSON can hold it, else its text; of the extras, each on its own."""
    try:
        _encoder.encode(value)
    except Exception:
        if is_extra and type(value) is dict:
            return {_text(name): _safe(value[name], False) for name in value}
        return _text(value)
    return value


def encode(record: logging.LogRecord, formatter: logging.Formatter | None = None) -> bytes:
    """The JSON object of a record; the record is left as it is.

    formatter: makes the whole message, traceback included, as `logging.handlers.QueueHandler` does
    when it has one. Without it message, traceback and stack stay apart, for the formatters of the
    listener. Raises what formatting raises.
    """
    known = vars(record)
    fields = {name: value for name in _COPIED if (value := known.get(name)) is not None}
    if formatter is not None:
        fields["message"] = formatter.format(_copy(record))
    else:
        fields["message"] = record.getMessage()
        fields["exc_text"] = record.exc_text or (
            _plain.formatException(record.exc_info) if record.exc_info else None
        )
        fields["stack_info"] = record.stack_info
    extra = known.keys() - _KNOWN
    if extra:
        fields["extra"] = {name: known[name] for name in known if name in extra}
    return _as_json(fields).encode("ascii")


def _copy(record: logging.LogRecord) -> logging.LogRecord:
    made = logging.LogRecord.__new__(type(record))
    vars(made).update(vars(record))
    return made


def decode(body: bytes) -> logging.LogRecord:
    """The record that `encode()` was given, its message formatted and without arguments.

    Other programs may write such objects too: name, levelno, message and created are needed.
    Raises ValueError for everything else.
    """
    try:
        value = _decoder.decode(str(body, "utf-8"))
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    record = logging.LogRecord.__new__(logging.LogRecord)  # whose __init__ asks who is here
    fields = vars(record)
    get = value.get
    for name, kinds in _FIELDS.items():
        fields[name] = field = get(name)
        if type(field) not in kinds:
            raise ValueError(f"{name} is {'missing' if field is None else 'of another type'}")
    created = fields["created"]
    if not 0 <= created <= _CREATED_MAX:
        raise ValueError("created is no time")
    if fields["levelname"] is None:
        fields["levelname"] = logging.getLevelName(fields["levelno"])
    if fields["msecs"] is None:
        fields["msecs"] = float(int((created - int(created)) * 1000))
    extra = value.get("extra")
    if isinstance(extra, dict):
        fields.update((name, extra[name]) for name in extra if name not in _KNOWN)
    fields["msg"] = fields["message"]
    fields["args"] = fields["exc_info"] = None
    return record


def notice(level: int, message: str, created: float | None = None) -> logging.LogRecord:
    """A record of this package's own, about records."""
    record = logging.LogRecord(_OWN_NAME, level, "", 0, message, None, None)
    if created is not None:
        record.created = created
        record.msecs = float(int((created - int(created)) * 1000))
    return record


def stand_in(item: Item, why: str) -> logging.LogRecord:
    """What is written in the place of an item that cannot be: it shows the whole body."""
    text = bytes(item.body).decode("utf-8", "backslashreplace")
    created = item.enqueued_at if 0 <= item.enqueued_at <= _CREATED_MAX else time.time()
    return notice(logging.ERROR, f"item {item.id} {why}: {text}", created)


def from_item(item: Item) -> logging.LogRecord:
    """The record in an item, or one that shows what is there instead."""
    try:
        return decode(bytes(item.body))
    except ValueError as error:
        return stand_in(item, f"is no log record ({error})")
