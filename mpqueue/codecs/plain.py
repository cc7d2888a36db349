"""Codecs that need the standard library only: bytes, JSON, and pickle under a name that warns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from mpqueue.codecs.base import Base

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Bytes", "Json", "UnsafePickle"]


class Bytes(Base):
    """Bytes as they are. Of use as what `Zstd` compresses: a queue without a codec is faster."""

    name = "bytes"

    def encode(self, value: Buffer, /) -> Buffer:
        """The same object; put() copies it."""
        return value

    def decode(self, body: bytes, /) -> bytes:
        """The same object."""
        return body


class Json(Base):
    """JSON in UTF-8, strictly: no NaN or Infinity, no lone surrogates.

    As JSON has it, tuples come back as lists and all keys as str. encode raises TypeError for what
    is no JSON, and ValueError.
    """

    name = "json"

    def __init__(self) -> None:
        import json

        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._to_text = encoder.encode
        self._to_value = json.JSONDecoder(parse_constant=_refuse).decode

    def encode(self, value: Any, /) -> bytes:
        """Compact JSON."""
        return self._to_text(value).encode()

    def decode(self, body: bytes, /) -> Any:
        """One JSON value. ValueError."""
        return self._to_value(str(body, "utf-8"))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


class UnsafePickle(Base):
    """Any object that pickles. Unsafe: whoever can write the queue's files runs code in its reader.

    A queue never makes a reader unpickle: one that was made with this codec is refused unless this
    codec is named again.
    """

    name = "unsafe-pickle"

    def __init__(self) -> None:
        import pickle

        self._dumps = pickle.dumps
        self._loads = pickle.loads

    def encode(self, value: Any, /) -> bytes:
        """A pickle in protocol 5, which every supported Python reads."""
        return self._dumps(value, 5)

    def decode(self, body: bytes, /) -> Any:
        """Loads it, and so runs what it says."""
        return self._loads(body)
