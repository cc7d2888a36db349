"""Goal: a queue that was made for one type of item is not opened for another one.

Method: pairs of definitions that encode alike, and pairs that do not; a queue is made with the one
and opened with the other.
"""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy
import pytest

import mpqueue
from mpqueue import codecs


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Tree(msgspec.Struct):
    value: int
    colour: Colour = Colour.RED
    children: list[Tree] = []


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class Plain:
    a: int
    b: str = ""


def _struct(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct("Job", fields, **options)


ALIKE = {
    "defaults and names of classes": (
        _struct(("a", int), ("b", str, "x")),
        msgspec.defstruct("Other", [("a", int), ("b", str, "y")]),
    ),
    "the order of fields that go by name": (
        _struct(("a", int), ("b", str)),
        _struct(("b", str), ("a", int), kw_only=True),
    ),
    "descriptions": (
        _struct(("a", Annotated[int, msgspec.Meta(description="one")])),
        _struct(("a", int)),
    ),
    "a name that is encoded alike": (
        _struct(("aB", int)),
        _struct(("a_b", int), rename="camel"),
    ),
    "the order of a union": (int | str | None, None | str | int),
    "a recursive type": (Tree, Tree),
}
OTHERS = {
    "another type of a field": (_struct(("a", int)), _struct(("a", str))),
    "another name": (_struct(("a", int)), _struct(("b", int))),
    "one more": (_struct(("a", int)), _struct(("a", int), ("b", int, 0))),
    "no longer required": (_struct(("a", int)), _struct(("a", int, 0))),
    "a bound": (_struct(("a", int)), _struct(("a", Annotated[int, msgspec.Meta(ge=0)]))),
    "a tag": (_struct(("a", int)), _struct(("a", int), tag="job")),
    "an array": (_struct(("a", int)), _struct(("a", int), array_like=True)),
    "the order in an array": (
        _struct(("a", int), ("b", int), array_like=True),
        _struct(("b", int), ("a", int), array_like=True),
    ),
    "unknown fields": (_struct(("a", int)), _struct(("a", int), forbid_unknown_fields=True)),
    "members": (Colour, enum.IntEnum("Colour", {"RED": 1, "GREEN": 3})),
    "literals": (Literal["a", "b"], Literal["a"]),
    "what a list holds": (list[int], list[str]),
    "how deep it goes": (Tree, list[Tree]),
    "a tuple": (Pair, tuple[str, int]),
    "kinds of classes": (Plain, _struct(("a", int))),
    "custom types": (complex, Path),
}


def _name(type: Any) -> str:
    return codecs.Msgspec(type, schema=True).name


@pytest.mark.parametrize("case", ALIKE)
def test_what_encodes_alike_has_one_name(case: str) -> None:
    one, other = ALIKE[case]
    assert _name(one) == _name(other)


@pytest.mark.parametrize("case", OTHERS)
def test_what_does_not_has_another(case: str) -> None:
    one, other = OTHERS[case]
    assert _name(one) != _name(other)


def test_a_fingerprint_is_the_same_tomorrow() -> None:
    """Queues keep it."""
    assert _name(Tree) == "json:02d061adff92"
    assert (
        codecs.Msgspec(dict[str, int | None], "msgpack", schema=True).name == "msgpack:381bcec2830b"
    )


def test_the_longest_name_fits() -> None:
    name = codecs.Zstd(codecs.Msgspec(Tree, "msgpack", schema=True)).name + "+aes"
    assert len(name) <= 31


def test_a_codec_with_a_fingerprint_travels() -> None:
    codec = codecs.Msgspec(Tree, schema=True)
    assert pickle.loads(pickle.dumps(codec)).name == codec.name
    assert "schema=True" in repr(codec)


@pytest.mark.parametrize(
    ("made", "opened"),
    [
        (codecs.Msgspec(Tree, schema=True), codecs.Msgspec(Pair, schema=True)),
        (codecs.Msgspec(Tree, schema=True), codecs.Msgspec(Tree)),
        (codecs.Msgspec(Tree), codecs.Msgspec(Tree, schema=True)),
        (codecs.Msgspec(Tree, schema="tree-1"), codecs.Msgspec(Tree, schema="tree-2")),
        (codecs.Numpy("<f4"), codecs.Numpy("<f8")),
        (codecs.Numpy("<f4"), codecs.Numpy()),
        (codecs.Numpy([("a", "<f4")]), codecs.Numpy([("a", "<f8")])),
        (codecs.Numpy([("a", "<f4")]), None),
    ],
)
def test_a_queue_of_one_type_is_not_opened_with_another(
    spool: Path, made: Any, opened: Any
) -> None:
    with mpqueue.Queue(spool, codec=made, segment_size=1 << 16):
        pass
    before = {file.name: file.read_bytes() for file in spool.iterdir()}
    with pytest.raises(mpqueue.OptionsMismatch, match="codec"):
        mpqueue.Queue(spool, codec=opened)
    assert {file.name: file.read_bytes() for file in spool.iterdir()} == before
    with mpqueue.Queue(spool, codec=made) as q:
        assert q.options.codec == made.name


def test_arrays_of_the_right_dtype_only_are_put(spool: Path) -> None:
    with mpqueue.Queue(spool, codec=codecs.Numpy("<f4"), segment_size=1 << 16) as q:
        with pytest.raises(ValueError, match="this queue has float32"):
            q.put(numpy.zeros(3))
        assert len(q) == 0
