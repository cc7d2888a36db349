"""Compression as a codec around a codec."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from mpqueue.codecs.base import Base, library

if TYPE_CHECKING:
    from typing import Any, Literal, overload

    from mpqueue.codecs import Codec

__all__ = ["Zstd"]

T = TypeVar("T")


class Zstd(Base, Generic[T]):
    """What another codec makes, compressed by Zstandard: one frame an item, with its size in it.

    inner: the codec within, or its name. level: 1 (fast) to 22 (small), or below 0 (faster still).
    max_size: bytes before compression, at most. encode raises ValueError above it, and decode too,
    before it makes room: a small item cannot fill the memory.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Zstd[bytes],
            inner: Literal["bytes"] = ...,
            level: int = ...,
            max_size: int = ...,
        ) -> None: ...
        @overload
        def __init__(self, inner: Codec[T], level: int = ..., max_size: int = ...) -> None: ...
        @overload
        def __init__(
            self: Zstd[Any], inner: str, level: int = ..., max_size: int = ...
        ) -> None: ...

    def __init__(
        self, inner: Codec[T] | str = "bytes", level: int = 3, max_size: int = 1 << 30
    ) -> None:
        if not max_size >= 0:
            raise ValueError(f"max_size is {max_size}: it takes a number of bytes from 0 up")
        self._zstd = library("zstandard", "zstd")
        if isinstance(inner, str):
            from mpqueue.codecs.registry import lookup

            inner = lookup(inner)
        if inner.name.endswith("+aes"):
            raise ValueError(
                "what is encrypted does not compress: Zstd belongs within Aes, not around it"
            )
        self._zstd.ZstdCompressor(level=level)  # says now what is wrong with the level
        self.name = f"{inner.name}+zstd"
        self._arguments = inner, level, max_size
        self._inner = inner
        self._level = level
        self._max = max_size
        # The library's objects serve one thread at a time.
        self._own = threading.local()

    def encode(self, value: T, /) -> bytes:
        """Encodes by the codec within, then compresses."""
        plain = self._inner.encode(value)
        size = memoryview(plain).nbytes
        if size > self._max:
            raise ValueError(f"{size} bytes before compression: max_size is {self._max}")
        try:
            compressor = self._own.compressor
        except AttributeError:
            compressor = self._own.compressor = self._zstd.ZstdCompressor(level=self._level)
        made: bytes = compressor.compress(plain)
        return made

    def decode(self, body: bytes, /) -> T:
        """Decompresses, then decodes by the codec within."""
        size: int = self._zstd.frame_content_size(body)
        if size < 0:
            raise ValueError("a Zstandard frame that does not say its size")
        if size > self._max:
            raise ValueError(f"{size} bytes when decompressed: max_size is {self._max}")
        try:
            decompressor = self._own.decompressor
        except AttributeError:
            decompressor = self._own.decompressor = self._zstd.ZstdDecompressor()
        return self._inner.decode(decompressor.decompress(body, allow_extra_data=False))
