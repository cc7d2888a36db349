"""Codecs by name, and which one a queue gets.

R1  What a queue records chooses among the codecs of `_SAFE` alone, which run nothing that the
    bytes say. Every other codec, pickle and entry points among them, is used by those who name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpqueue.codecs.arrays import Numpy
from mpqueue.codecs.compressed import Zstd
from mpqueue.codecs.encrypted import SUFFIX as _AES
from mpqueue.codecs.encrypted import Aes
from mpqueue.codecs.keys import admit
from mpqueue.codecs.packed import Msgpack
from mpqueue.codecs.plain import Bytes, Json, UnsafePickle
from mpqueue.exceptions import CodecError, KeyMismatch, OptionsMismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpqueue._native import Item, Queue
    from mpqueue.codecs import Codec
    from mpqueue.codecs.keys import Look

__all__ = ["bind", "check", "decoder", "judge", "lookup", "name_of", "recorded"]

_GROUP = "mpqueue.codecs"
_NAME_MAX = 31
_ZSTD = "+zstd"
_SAFE: dict[str, Callable[[], Codec[Any]]] = {
    "bytes": Bytes,
    "json": Json,
    "msgpack": Msgpack,
    "numpy": Numpy,
}
_NAMED: dict[str, Callable[[], Codec[Any]]] = {**_SAFE, "unsafe-pickle": UnsafePickle}


def name_of(codec: object) -> str:
    """The name under which a queue records `codec`, a codec or a name. TypeError, ValueError."""
    name = codec if isinstance(codec, str) else getattr(codec, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"codec is {codec!r}: it is a name, or an object with name, encode, decode")
    if not (0 < len(name) <= _NAME_MAX and name.isascii() and name.isprintable()):
        raise ValueError(
            f"the name of a codec is 1 to {_NAME_MAX} printable ASCII characters, not {name!r}"
        )
    return name


def check(codec: Codec[Any] | str) -> Codec[Any]:
    """The codec itself, found by its name if it is one. TypeError, ValueError, ImportError."""
    if isinstance(codec, str):
        return lookup(codec)
    name_of(codec)
    for method in ("encode", "decode"):
        if isinstance(codec, type) or not callable(getattr(codec, method, None)):
            raise TypeError(f"codec is {codec!r}: an object with name, encode and decode is wanted")
    return codec


def lookup(name: str) -> Codec[Any]:
    """A codec by its name: one of this package, or of the entry points `mpqueue.codecs`.

    An entry point refers to a codec, or to something that makes one when it is called without
    arguments; its name is the codec's.

    Raises ValueError when there is none or more than one, ImportError when a library is missing,
    KeyMismatch for one that encrypts, which a name does not make.
    """
    if name.endswith(_AES):
        raise KeyMismatch(
            f"codec {name!r} needs its keys: codecs.Aes({name.removesuffix(_AES)!r}, key_file=...)"
        )
    if name.endswith(_ZSTD):
        return Zstd(lookup(name.removesuffix(_ZSTD)))
    if name in _NAMED:
        return _NAMED[name]()
    name_of(name)
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=_GROUP, name=name)}
    if len(found) == 1:
        (point,) = found.values()
        codec = point.load()
        if isinstance(codec, type) or not hasattr(codec, "encode"):
            codec = codec()
        codec = check(codec)
        if codec.name != name:
            raise ValueError(f"the entry point {name!r} gives a codec of another name: {codec!r}")
        return codec
    if found:
        raise ValueError(f"codec {name!r} is claimed by several packages: {', '.join(found)}")
    hint = " It is called 'unsafe-pickle' here." if name == "pickle" else ""
    known = ", ".join((*_NAMED, "any of them with +zstd"))
    raise ValueError(
        f"no codec is called {name!r}: known are {known}, and entry points {_GROUP}.{hint}"
    )


def recorded(name: str, path: str) -> Codec[Any]:
    """The codec of a queue that records `name`, for an opener that named none (R1).

    Raises OptionsMismatch when it takes naming, KeyMismatch when it takes keys, ImportError when
    its library is missing.
    """
    if name.endswith(_AES):
        raise KeyMismatch(
            f"{path}: the queue has codec = {name!r}, whose items are encrypted: give "
            f"codec=codecs.Aes({name.removesuffix(_AES)!r}, key_file=...), or raw=True for the "
            "bytes as they are stored"
        )
    inner = name.removesuffix(_ZSTD)
    if inner not in _SAFE:
        raise OptionsMismatch(
            f"{path}: the queue has codec = {name!r}, which is used only when it is named: give "
            "codec=, or raw=True for the bytes as they are stored"
        )
    return lookup(name)


def judge(codec: Codec[Any] | None, look: Look, path: str) -> None:
    """Refuses an opener by what the queue records, before it joins.

    Raises OptionsMismatch, KeyMismatch, ImportError.
    """
    name = look[1]
    if codec is None:
        recorded(name, path)
    elif isinstance(codec, Aes) and codec.name == name:
        codec.ring.judge(look, path)


def bind(codec: Codec[Any], queue: Queue[Any]) -> Codec[Any]:
    """The codec for an open queue: the same, but where it encrypts. Raises KeyMismatch."""
    if not isinstance(codec, Aes):
        return codec
    admit(queue, codec.ring)
    return codec.bind(queue.uuid)


def decoder(codec: Codec[Any], path: str) -> Callable[[Item[Any]], Any]:
    """What makes the value of an item, or raises CodecError with the item in it."""
    decode, name = codec.decode, codec.name

    def value(item: Item[Any]) -> Any:
        try:
            return decode(item.body)
        except MemoryError:  # of the machine: the item may be as good as any
            raise
        except Exception as error:
            raise _failure(item, name, path, error) from error

    return value


def _failure(item: Item[Any], name: str, path: str, error: Exception) -> CodecError:
    what = (
        "ack() drops it, dead() makes it a dead letter; nack() gives it back, and skip() passes it"
    )
    if item.settled:  # of peek(), too
        what = "It is not in hand: skip() passes it while it is the next one"
    failure = CodecError(
        f"{path}: item {item.id} cannot be decoded as {name!r}: {type(error).__name__}: {error}. "
        f"{what}"
    )
    failure.item = item
    failure.id = item.id
    return failure
