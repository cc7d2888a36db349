"""numpy arrays: an item is a .npy file, and reading it makes a view, not a copy.

The header of that format holds dtype, shape and order in at most 10,000 bytes of text, which is
read as a literal; arrays of objects, the part of the format that pickles, are refused both ways.
Streams have few shapes, so headers are kept, made and parsed, a bounded number of each.
"""

from __future__ import annotations

import io
from math import prod
from typing import TYPE_CHECKING, Any

from mpqueue.codecs.base import Base

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Numpy"]

_MAGIC = b"\x93NUMPY\x01\x00"
_KEPT = 256


class Numpy(Base):
    """Arrays of any shape and any dtype without objects. Values come back read-only.

    With `consumer(views=True)` a value lies in the segment itself: nothing is copied, and it stays
    valid after ack and close. Without views it lies in `item.body`.

    dtype: None takes and gives arrays of any; else of this one alone, which goes into the name
    ("numpy:<f4"; a hash of it where it is long), so that only those who name it open the queue.

    encode raises TypeError for what is no plain array, ValueError for another dtype and for names
    of fields that are not Latin-1 or longer than 10,000 bytes together.
    """

    def __init__(self, dtype: Any = None) -> None:
        import numpy

        self._np = numpy
        self._dtype = None if dtype is None else numpy.dtype(dtype)
        self.name = "numpy"
        self._headers: dict[Any, bytes] = {}
        self._layouts: dict[bytes, tuple[Any, ...]] = {}
        if self._dtype is not None:
            self._arguments = (self._dtype,)
            if self._dtype.hasobject:
                raise TypeError(f"dtype {self._dtype} holds objects: they would have to be pickled")
            self.name = f"numpy:{_label(self._dtype)}"

    def encode(self, value: NDArray[Any], /) -> bytes:
        """Header and elements; an array that is not contiguous is copied once more."""
        numpy = self._np
        if not isinstance(value, numpy.ndarray) or isinstance(value, numpy.ma.MaskedArray):
            raise TypeError(f"{type(value).__name__} is no plain array: use numpy.asarray() first")
        if self._dtype is not None and value.dtype != self._dtype:
            raise ValueError(f"an array of {value.dtype}: this queue has {self._dtype}")
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        plain = numpy.asarray(value.T if fortran else value, order="C")
        key = (value.dtype, value.shape, fortran)
        header = self._headers.get(key)
        if header is None:
            header = self._header(*key)
            _keep(self._headers, key, header)
        return b"".join((header, plain.reshape(-1).view(numpy.uint8).data))

    def decode(self, body: bytes, /) -> NDArray[Any]:
        """A read-only view of the elements in `body`. ValueError."""
        length = int.from_bytes(body[8:10], "little")
        header = bytes(body[: 10 + length])
        layout = self._layouts.get(header)
        if layout is None:
            layout = self._layout(header)
            _keep(self._layouts, header, layout)
        dtype, shape, order, size = layout
        if len(body) != len(header) + size:
            raise ValueError(f"{len(body) - len(header)} bytes of elements, not {size}")
        array: NDArray[Any] = self._np.ndarray(shape, dtype, body, len(header), order=order)
        array.flags.writeable = False
        return array

    def _header(self, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
        if dtype.hasobject:
            raise TypeError(f"dtype {dtype} holds objects: they would have to be pickled")
        if not dtype.itemsize:
            raise TypeError(f"dtype {dtype} has no bytes")
        form = self._np.lib.format
        out = io.BytesIO()
        fields = {
            "descr": form.dtype_to_descr(dtype),
            "fortran_order": fortran,
            "shape": shape,
        }
        form.write_array_header_1_0(out, fields)
        header = out.getvalue()
        if self._layout(header)[0] != dtype:
            raise TypeError(f"dtype {dtype} cannot be written as .npy")
        return header

    def _layout(self, header: bytes) -> tuple[Any, ...]:
        if not header.startswith(_MAGIC):
            raise ValueError("no array in .npy format, version 1.0")
        try:
            shape, fortran, dtype = self._np.lib.format.read_array_header_1_0(
                io.BytesIO(header[len(_MAGIC) :])
            )
        except Exception as error:  # MemoryError too: the parser's, for text that nests deep
            raise ValueError(f"a header that numpy cannot read: {error}") from error
        if dtype.hasobject:
            raise ValueError("an array of objects: they would have to be unpickled")
        if self._dtype is not None and dtype != self._dtype:
            raise ValueError(f"an array of {dtype}: this queue has {self._dtype}")
        if not dtype.itemsize or any(type(length) is not int or length < 0 for length in shape):
            raise ValueError(f"no array has shape {shape} and dtype {dtype}")
        return dtype, shape, "F" if fortran else "C", prod(shape) * dtype.itemsize


def _label(dtype: np.dtype[Any]) -> str:
    """The dtype where it is one word that fits the name of a codec, else a hash of it."""
    if dtype.fields is None and dtype.subdtype is None and len(dtype.str) <= 25:
        return dtype.str
    from hashlib import blake2b

    return blake2b(repr(dtype.descr).encode(), digest_size=8).hexdigest()


def _keep(kept: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= _KEPT:
        kept.clear()
    kept[key] = value
