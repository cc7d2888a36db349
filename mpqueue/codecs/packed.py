"""MessagePack by msgpack, and checked JSON or MessagePack by msgspec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpqueue.codecs.base import Base, library

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

__all__ = ["Msgpack", "Msgspec"]

T = TypeVar("T")


class Msgpack(Base):
    """MessagePack: None, bool, int of 64 bits, float, str, bytes, lists and dicts of them.

    Tuples come back as lists. encode raises TypeError, ValueError or OverflowError for the rest.
    """

    name = "msgpack"

    def __init__(self) -> None:
        msgpack = library("msgpack", "msgpack")
        self._pack: Callable[..., bytes] = msgpack.packb
        self._unpack: Callable[..., Any] = msgpack.unpackb

    def encode(self, value: Any, /) -> bytes:
        """One MessagePack value."""
        return self._pack(value)

    def decode(self, body: bytes, /) -> Any:
        """One MessagePack value, with nothing after it."""
        return self._unpack(body, strict_map_key=False)


class Msgspec(Base, Generic[T]):
    """JSON or MessagePack by msgspec, which checks every item against a type when it decodes it.

    type: a `msgspec.Struct`, or any type that msgspec knows. What does not fit is a CodecError.
    format: "json" or "msgpack"; it is the codec's name, so other codecs of that name interoperate.
    schema: a label of your own, such as "job-2". It goes into the name ("json:job-2"), so that only
    those who name the same label open the queue; leave it out for types that may evolve. True: a
    fingerprint of the type stands for a label, so that one with other fields does not open it.
    """

    def __init__(
        self,
        type: type[T],
        format: Literal["json", "msgpack"] = "json",
        *,
        schema: str | bool | None = None,
    ) -> None:
        msgspec = library("msgspec", "msgspec")
        if format not in ("json", "msgpack"):
            raise ValueError(f"format is {format!r}: it is 'json' or 'msgpack'")
        library("msgspec." + format, "msgspec")
        part = getattr(msgspec, format)
        if schema is True:
            from mpqueue.codecs.schema import fingerprint

            label = f":{fingerprint(type)}"
        else:
            label = "" if schema is None or schema is False else f":{schema}"
        self.name = format + label
        self._made = type, format, schema
        self.encode: Callable[[T], bytes] = part.Encoder().encode
        self.decode: Callable[[bytes], T] = part.Decoder(type).decode

    def __reduce__(self) -> tuple[Any, ...]:
        return _msgspec, self._made

    def __repr__(self) -> str:
        type, format, schema = self._made
        label = "" if schema is None else f", schema={schema!r}"
        return f"Msgspec({type!r}, {format!r}{label})"


def _msgspec(
    type: type[Any], format: Literal["json", "msgpack"], schema: str | bool | None
) -> Msgspec[Any]:
    return Msgspec(type, format, schema=schema)
