"""Codecs: what turns the objects that are put into the bytes that are stored, and back.

A codec is any object with a `name`, `encode` and `decode` (see `Codec`). `Queue(path, codec=...)`
takes one, or the name of one:

    bytes           `Bytes`: as they are; what a queue has when none is named
    json            `Json`: JSON in UTF-8
    msgpack         `Msgpack`: MessagePack; needs the extra `msgpack`
    numpy           `Numpy`: arrays as .npy, read back as views
    unsafe-pickle   `UnsafePickle`: any object; loading runs what the bytes say
    NAME+zstd       `Zstd`: the codec NAME, compressed; needs the extra `zstd`
    NAME+aes        `Aes`: the codec NAME, encrypted; given as an object, with its keys; needs the
                    extra `crypto`

`Msgspec`, which checks what it decodes against a type, is given as an object. Other names are
looked up among the entry points of the group `mpqueue.codecs`.

The queue stores the name alone, and a name stands for the stored form: codecs that agree on the
form, such as `Json()` and `Msgspec(Job)`, have one name and read each other's items. Libraries are
imported when a codec that needs them is made, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from mpqueue.codecs.arrays import Numpy
from mpqueue.codecs.compressed import Zstd
from mpqueue.codecs.encrypted import Aes
from mpqueue.codecs.packed import Msgpack, Msgspec
from mpqueue.codecs.plain import Bytes, Json, UnsafePickle
from mpqueue.codecs.registry import lookup

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Aes",
    "Bytes",
    "Codec",
    "Json",
    "Msgpack",
    "Msgspec",
    "Numpy",
    "UnsafePickle",
    "Zstd",
    "lookup",
]

T = TypeVar("T")


class Codec(Protocol[T]):
    """What `Queue(path, codec=...)` takes: nothing has to be inherited.

    Both methods may be called from any thread, and at the same time. A codec that travels with a
    pickled `Queue` has to pickle too. Wrapping another codec is fine: `Zstd` does.
    """

    @property
    def name(self) -> str:
        """Of the stored form: 1 to 31 printable ASCII characters, recorded in the queue."""

    def encode(self, value: T, /) -> Buffer:
        """The bytes to store. What it raises comes out of the put, which then puts nothing."""
        ...

    def decode(self, body: bytes, /) -> T:
        """The value of stored bytes, which are a read-only memoryview from a consumer with views.

        Any Exception but MemoryError makes a CodecError of the item, which stays in the queue. So
        it must raise for what `encode` cannot have made, and must never run what the bytes say.
        """
        ...
