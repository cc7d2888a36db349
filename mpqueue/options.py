"""The options that a queue keeps, in the units of its users: float seconds, bytes, None = none.

Owns the conversion to and from the stored form. Ranges are checked by the native half, which names
the option and its bounds in a ValueError.
"""

from __future__ import annotations

from mpqueue._record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    Durability = Literal["none", "interval", "group", "sync"]

__all__ = ["DURABILITIES", "NO_CODEC", "Options", "from_native", "to_native"]

DURABILITIES: tuple[Durability, ...] = ("none", "interval", "group", "sync")
"""All policies; the place of each is its stored number."""

NO_CODEC = "bytes"
"""The public name of the codec of a queue that records none."""

_SECONDS = ("interval", "ack_linger", "retain", "lease_timeout", "dead_retain")
_NUMBERS = (
    "segment_size",
    "capacity",
    "max_bytes",
    "max_item",
    "max_segments",
    "keep_segments",
    "interval_items",
    "ack_window",
    "max_members",
    "max_attempts",
    "key_window",
)
_OPTIONAL = ("capacity", "max_bytes", "lease_timeout", "max_attempts", "dead_retain", "key_window")
_SECONDS_MAX = 1e9


class Options(Record):
    """The options of a queue, as every process sees them now."""

    segment_size: int
    """Bytes of a segment file, a multiple of 4,096 from 64 KiB to 1 GiB; fixed at creation. Default
    16 MiB."""
    max_segments: int
    """At most so many segment files, 4 to 8,192. Default 64."""
    keep_segments: int
    """Freed segments kept for reuse, 0 to 64. Default 2."""
    capacity: int | None
    """At most so many unacked items; None = no bound of its own."""
    max_bytes: int | None
    """At most so many bytes of unacked frames, at least 64; None = no bound of its own."""
    max_item: int
    """Largest payload, 1 byte to 2 GiB; headers do not count (at most 65,528 bytes). Default 64
    MiB."""
    durability: Durability
    """When a put returns: "sync", "group" (default), "interval" or "none"."""
    interval_items: int
    """Policy interval: at most so many items exposed to a power cut, 1 or more. Default 1,000."""
    interval: float
    """Policy interval: flush at least so often while calls are made, seconds, above 0; sync flushes
    at every put. Default 0.1."""
    ack_window: int
    """How far acks may run ahead of the oldest unacked item, a multiple of 64 from 64 to 4,194,304;
    fixed at creation. Default 32,768."""
    ack_linger: float
    """An ack is on disk within so many seconds, except under none. Default 0.01."""
    max_members: int
    """Entries of the table of members, 1 to 65,536: so many processes are named in `members()`;
    more may attach and put. Fixed at creation. Default 1,024."""
    key_window: int | None
    """So many of the items that were put with a key are remembered, 1 to 4,194,304; fixed at
    creation. None = keys are refused. Default None."""
    retain: float
    """Keep acked segments for so many seconds. Default 0."""
    lease_timeout: float | None
    """An item in hand that is neither settled nor extended for so many seconds is ready again, and
    its hand-out stale; above 0, counted in steps of 0.26 ms; None (default) = never."""
    max_attempts: int | None
    """An item that was handed out so often, 1 to 65,535, is not handed out again but moved to the
    dead letters; None (default) = no bound."""
    dead_retain: float | None
    """A sweep drops dead letters older than so many seconds, above 0; None (default) = none."""
    codec: str
    """Name of what makes bytes of the items, see `mpqueue.codecs`; fixed at creation. Default
    "bytes": nothing does."""
    mode: int
    """Permission bits of the files, with read and write for the owner; the directory has the
    matching x bits; fixed at creation. Default 0o600."""


def _nanoseconds(name: str, seconds: float, above: bool = False) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"option {name} is {seconds!r}: it takes a number of seconds")
    if not 0 <= seconds <= _SECONDS_MAX or (above and seconds < 1e-9):
        least = "above 0" if above else "from 0"
        raise ValueError(f"option {name} is {seconds!r}: it takes seconds {least} to 1e9")
    return round(seconds * 1e9)


def _number(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"option {name} is {value!r}: it takes a whole number")
    if not least <= value < 1 << 64:
        raise ValueError(f"option {name} is {value!r}: it takes a whole number from {least} up")
    return value


def to_native(options: Mapping[str, Any]) -> dict[str, object]:
    """The stored form of some options. ValueError and TypeError name the option."""
    stored: dict[str, object] = {}
    for name, value in options.items():
        optional = name in _OPTIONAL  # 0 is the stored form of "none", so it is no value
        if name == "durability":
            if value not in DURABILITIES:
                raise ValueError(
                    f"option durability is {value!r}: it is one of {', '.join(DURABILITIES)}"
                )
            stored[name] = DURABILITIES.index(value)
        elif name == "codec":
            if not isinstance(value, str):
                raise ValueError(f"option codec is {value!r}: its name is wanted")
            stored[name] = "" if value == NO_CODEC else value
        elif name == "mode":
            if _number(name, value, 0) > 0o777:
                raise ValueError(f"option mode is {value!r}: it takes permission bits like 0o660")
            stored["file_mode"] = value & 0o666
        elif value is None and optional:
            stored[f"{name}_ns" if name in _SECONDS else name] = 0
        elif name in _SECONDS:
            stored[f"{name}_ns"] = _nanoseconds(name, value, optional or name == "interval")
        elif name in _NUMBERS:
            stored[name] = _number(name, value, 1 if optional else 0)
        else:
            raise TypeError(f"no option is called {name!r}")
    return stored


def from_native(stored: Mapping[str, Any]) -> Options:
    """Options from their stored form."""
    values: dict[str, object] = {}
    for name in Options.__annotations__:
        if name == "durability":
            values[name] = DURABILITIES[stored[name]]
        elif name == "codec":
            values[name] = stored[name] or NO_CODEC
        elif name == "mode":
            values[name] = stored["file_mode"]
        else:
            value = stored[f"{name}_ns"] / 1e9 if name in _SECONDS else stored[name]
            values[name] = None if name in _OPTIONAL and not value else value
    return Options(**values)
