"""Goal: what a codec encodes it decodes to the same, and what it cannot have encoded it refuses.

Method: hypothesis over the values of each codec, and over bytes that no codec made; every decoder
is given bytes and a read-only view, as consumers hand them out.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mpqueue import codecs


class Job(msgspec.Struct):
    number: int
    name: str = ""


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# A loaded machine fails no test.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | FLOATS | TEXT


def _trees(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
    )


JSON = _trees(LEAVES, TEXT)
PACKED = _trees(LEAVES | st.binary(), TEXT | st.integers(-5, 5) | st.binary())
JOBS = st.builds(Job, st.integers(-(1 << 63), (1 << 63) - 1), TEXT)
DTYPES = (
    arrays.boolean_dtypes()
    | arrays.integer_dtypes(endianness="?")
    | arrays.floating_dtypes(endianness="?")
    | arrays.complex_number_dtypes()
    | arrays.datetime64_dtypes()
    | arrays.byte_string_dtypes(min_len=1)
    | arrays.unicode_string_dtypes(min_len=1)
)
ARRAYS = arrays.arrays(
    DTYPES | arrays.array_dtypes(DTYPES, max_size=3, allow_subarrays=True),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


def both(codec: codecs.Codec[Any], value: Any) -> tuple[Any, Any]:
    """Decoded from bytes and from a view."""
    body = bytes(memoryview(codec.encode(value)))
    return codec.decode(body), codec.decode(memoryview(body))  # type: ignore[arg-type]


CODECS: dict[str, tuple[Callable[[], codecs.Codec[Any]], st.SearchStrategy[Any]]] = {
    "json": (codecs.Json, JSON),
    "msgpack": (codecs.Msgpack, PACKED),
    "msgspec-json": (lambda: codecs.Msgspec(Job), JOBS),
    "msgspec-msgpack": (lambda: codecs.Msgspec(Job, "msgpack"), JOBS),
    "unsafe-pickle": (codecs.UnsafePickle, PACKED | st.frozensets(LEAVES)),
    "json+zstd": (lambda: codecs.Zstd(codecs.Json(), level=1), JSON),
    "bytes+zstd": (codecs.Zstd, st.binary(max_size=10_000)),
}


@pytest.mark.parametrize("name", CODECS)
@patient
@given(data=st.data())
def test_values_come_back(name: str, data: st.DataObject) -> None:
    make, values = CODECS[name]
    value = data.draw(values)
    for decoded in both(make(), value):
        assert decoded == value
        assert type(decoded) is type(value)


@patient
@given(array=ARRAYS, order=st.sampled_from("CF"), step=st.sampled_from([1, 2, -1]))
@example(array=numpy.zeros((3, 0), "<f8"), order="F", step=-1)
@example(array=numpy.array(7, ">i4"), order="C", step=1)
def test_arrays_come_back_read_only_with_dtype_and_shape(
    array: numpy.ndarray[Any, Any], order: Any, step: int
) -> None:
    try:
        codecs.Numpy().encode(array)
    except UnicodeEncodeError:  # names and titles of fields: see below
        reject()
    array = numpy.asarray(array, order=order)
    if array.ndim:
        array = array[::step]
    for codec in (codecs.Numpy(), codecs.Numpy(array.dtype), codecs.Zstd("numpy")):
        for decoded in both(codec, array):
            assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
            assert decoded.tobytes() == array.tobytes()
            assert not decoded.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                decoded.flags.writeable = True
        own = bytearray(codec.encode(array))  # as a codec around this one may make it
        assert not codec.decode(own).flags.writeable  # type: ignore[arg-type]


def test_an_array_item_is_a_npy_file_and_its_value_a_view_of_it() -> None:
    array = numpy.arange(12, dtype="<u2").reshape(3, 4)
    body = codecs.Numpy().encode(array)
    assert numpy.array_equal(numpy.load(io.BytesIO(body), allow_pickle=False), array)
    saved = io.BytesIO()
    numpy.save(saved, array)
    assert numpy.array_equal(codecs.Numpy().decode(saved.getvalue()), array)
    assert numpy.shares_memory(codecs.Numpy().decode(body), numpy.frombuffer(body, "u1"))


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        3.0,
        b"x",
        numpy.float64(3),
        numpy.array([object()]),
        numpy.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]),
        numpy.ma.masked_array([1, 2], mask=[0, 1]),
        numpy.zeros(3, "V0"),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_what_is_no_plain_array_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"plain array|objects|no bytes"):
        codecs.Numpy().encode(value)


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_a_bound_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_size is"):
        codecs.Zstd("bytes", max_size=bad)


def test_field_names_that_the_format_has_no_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="latin-1"):
        codecs.Numpy().encode(numpy.zeros(1, [("\u0100", "i4")]))
    with pytest.raises(ValueError, match="Header info length"):
        codecs.Numpy().encode(numpy.zeros(1, [(f"{i:0>100}", "i4") for i in range(200)]))


def test_a_fixed_dtype_is_kept_both_ways() -> None:
    fixed = codecs.Numpy("<f4")
    assert fixed.name == "numpy:<f4"
    with pytest.raises(ValueError, match="float64"):
        fixed.encode(numpy.zeros(2))
    with pytest.raises(ValueError, match="float64"):
        fixed.decode(codecs.Numpy().encode(numpy.zeros(2)))
    one, other = [("a", "<i4"), ("b", "<f8")], [("a", "<i4"), ("c", "<f8")]
    names = {codecs.Numpy(one).name, codecs.Numpy(other).name, codecs.Numpy("<M8[ns]").name}
    assert len(names) == 3
    assert all(len(name) <= 31 for name in names)
    with pytest.raises(TypeError, match="objects"):
        codecs.Numpy("O")


def test_headers_are_kept_but_not_without_bound() -> None:
    codec = codecs.Numpy()
    for length in range(1000):
        assert codec.decode(codec.encode(numpy.zeros(length, "u1"))).shape == (length,)
    assert len(codec._headers) <= 256
    assert len(codec._layouts) <= 256


# ---- bytes that no codec made -------------------------------------------------------------------


def _npy(header: bytes, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + body


NPY = [
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", b"short"),
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1, -1), }\n", b"1234"),
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (1 << 70,), }\n"),
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }\n" % (1 << 70)),
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (True,), }\n", b"1234"),
    _npy(b"{'descr': '|V0', 'fortran_order': False, 'shape': (5,), }\n"),
    _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", pickle.dumps([1])),
    _npy(b"-" * 9000 + b"1"),
    _npy(b"(" * 9000),
    _npy(b"[" * 50 + b"]" * 50),
    _npy(b"{}"),
    _npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (), }\n", b"1234", b"\3\0"),
    b"\x93NUMPY\1\0\xff\xff",
]
REFUSALS = (ValueError, TypeError, RecursionError, msgspec.MsgspecError, zstandard.ZstdError)
DECODERS: dict[str, codecs.Codec[Any]] = {
    "json": codecs.Json(),
    "msgpack": codecs.Msgpack(),
    "msgspec-json": codecs.Msgspec(Job),
    "msgspec-msgpack": codecs.Msgspec(Job, "msgpack"),
    "numpy": codecs.Numpy(),
    "json+zstd": codecs.Zstd("json"),
    "numpy+zstd": codecs.Zstd("numpy"),
}


@pytest.mark.parametrize("name", DECODERS)
@patient
@given(body=st.binary() | st.sampled_from(NPY) | st.builds(_npy, st.binary(), st.binary()))
@example(body=b"")
@example(body=b"[" * 100_000)
@example(body=b"\x91" * 100_000)
def test_any_bytes_are_decoded_or_refused_by_an_exception(name: str, body: bytes) -> None:
    """Nothing worse: not MemoryError, which would pass for a fault of the machine."""
    decode = DECODERS[name].decode
    for form in (body, memoryview(body)):
        with contextlib.suppress(*REFUSALS):
            decode(form)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", NPY)
def test_malformed_arrays_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|shape|elements|version|objects"):
        codecs.Numpy().decode(body)


def test_an_array_of_objects_is_refused_before_its_pointers_are_believed() -> None:
    body = _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", bytes(8))
    with pytest.raises(ValueError, match="would have to be unpickled"):
        codecs.Numpy().decode(body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("json", b"NaN"),
        ("json", b"[1] [2]"),
        ("json", b'"\xff"'),
        ("json", '{"a": 1}'.encode("utf-16")),
        ("msgpack", b"\x01\x02"),
        ("msgspec-json", b'{"number": "1"}'),
        ("msgspec-json", b"{}"),
        ("msgspec-msgpack", b"\x81\xa6number\xa11"),
        ("json+zstd", b"{}"),
        ("json+zstd", zstandard.compress(b"{}") + b"x"),
        ("json+zstd", zstandard.compress(b"{}")[:-1]),
        ("json+zstd", zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")),
    ],
)
def test_bodies_that_fit_a_codec_almost_are_refused(name: str, body: bytes) -> None:
    with pytest.raises(REFUSALS):
        DECODERS[name].decode(body)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}, b"bytes"])
def test_json_refuses_what_others_could_not_read(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        codecs.Json().encode([value])


# ---- compression --------------------------------------------------------------------------------


def test_compression_is_bounded_both_ways() -> None:
    narrow, wide = codecs.Zstd("bytes", max_size=100), codecs.Zstd("bytes")
    assert narrow.decode(narrow.encode(b"x" * 100)) == b"x" * 100
    with pytest.raises(ValueError, match="max_size is 100"):
        narrow.encode(b"x" * 101)
    with pytest.raises(ValueError, match="max_size is 100"):
        narrow.decode(wide.encode(b"x" * 101))
    assert len(wide.encode(bytes(100_000))) < 100
    with pytest.raises(ValueError, match="level"):
        codecs.Zstd("bytes", level=100)


def test_one_codec_serves_many_threads() -> None:
    """The library's own objects do not: each thread has to have its own."""
    codec = codecs.Zstd("bytes")
    failures: list[object] = []
    together = threading.Barrier(4)

    def work(index: int) -> None:
        body = os.urandom(1 << 16) + bytes([index]) * (1 << 18)
        together.wait()
        for _ in range(50):
            if codec.decode(codec.encode(body)) != body:
                failures.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- names --------------------------------------------------------------------------------------

ALL = [
    codecs.Bytes(),
    codecs.Json(),
    codecs.Msgpack(),
    codecs.Msgspec(Job),
    codecs.Msgspec(Job, "msgpack", schema="v2"),
    codecs.Numpy(),
    codecs.Numpy([("a", "<i4")]),
    codecs.UnsafePickle(),
    codecs.Zstd("numpy", 5, 1000),
    codecs.Zstd(codecs.Msgspec(Job, schema="v3")),
]


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_codecs_pickle_compare_and_show_themselves(codec: codecs.Codec[Any]) -> None:
    copy = pickle.loads(pickle.dumps(codec))
    assert copy == codec
    assert hash(copy) == hash(codec)
    assert repr(copy) == repr(codec)
    assert copy.name == codec.name
    assert [other for other in ALL if other == codec] == [codec]


@pytest.mark.parametrize("name", ["bytes", "json", "msgpack", "numpy", "unsafe-pickle"])
def test_codecs_are_found_by_name(name: str) -> None:
    assert codecs.lookup(name).name == name
    assert codecs.lookup(name + "+zstd") == codecs.Zstd(codecs.lookup(name))


def test_names_say_the_stored_form() -> None:
    assert codecs.Msgspec(Job).name == codecs.Json().name == "json"
    assert codecs.Msgspec(Job, "msgpack").name == codecs.Msgpack().name == "msgpack"
    assert codecs.Msgspec(Job, schema="job-2").name == "json:job-2"
    with pytest.raises(ValueError, match="'json' or 'msgpack'"):
        codecs.Msgspec(Job, "yaml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [("jsno", "known are bytes, json"), ("pickle", "unsafe-pickle"), ("", "1 to 31")],
)
def test_an_unknown_name_is_answered_by_the_known_ones(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        codecs.lookup(name)


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, make in {
        "msgpack": codecs.Msgpack,
        "msgspec": lambda: codecs.Msgspec(Job),
        "zstandard": codecs.Zstd,
    }.items():
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(ImportError, match=r"pip install 'mpqueue\[(msgpack|msgspec|zstd)\]'"):
            make()


def test_codecs_import_no_library_before_they_are_made(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    run_python(
        """
        import sys
        import mpqueue.codecs
        heavy = {"json", "pickle", "msgpack", "msgspec", "numpy", "zstandard"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        with mpqueue.Queue(sys.argv[1], codec="json") as q:
            q.put({"a": 1})
        assert heavy & set(sys.modules) == {"json"}, heavy & set(sys.modules)
        mpqueue.destroy(sys.argv[1])
        """,
        tmp_path / "spool",
    )
