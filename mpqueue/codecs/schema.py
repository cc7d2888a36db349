"""A fingerprint of a type that msgspec knows: equal where the encoded forms are.

It covers what a decoder insists on: kinds, encoded names of fields and whether they are required,
tags, members of enumerations, bounds. Not names of classes, defaults, descriptions, or the order of
fields where they go by name: those may change. An attribute that a later msgspec adds counts only
where it is set, so that another version makes the same fingerprint of the same type.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

DIGITS = 12
"""Hexadecimal ones: enough to tell versions of a type, and the name of a codec has room for them
beside "msgpack", "+zstd" and "+aes"."""


def fingerprint(type: Any) -> str:
    """Hexadecimal digits. Raises TypeError for what msgspec does not take."""
    import msgspec.inspect

    shape = _shape(msgspec.inspect.type_info(type), ())
    return blake2b(repr(shape).encode(), digest_size=DIGITS // 2).hexdigest()


def _shape(node: Any, above: tuple[int, ...]) -> object:
    """Nested tuples of strings and numbers. `above`: what the node lies in, which it may be."""
    if id(node) in above:
        return "above", len(above) - above.index(id(node))
    kind = type(node).__name__
    if kind == "Metadata":
        return _shape(node.type, above)
    inside = (*above, id(node))
    if kind == "EnumType":
        return kind, sorted((member.value for member in node.cls), key=repr)
    if kind == "CustomType":
        return kind, f"{node.cls.__module__}.{node.cls.__qualname__}"
    if kind == "UnionType":
        return kind, sorted((_shape(each, inside) for each in node.types), key=repr)
    shape: list[object] = [kind]
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if name == "fields":
            fields = [(f.encode_name, f.required, _shape(f.type, inside)) for f in value]
            by_place = kind == "NamedTupleType" or getattr(node, "array_like", False)
            shape.append(fields if by_place else sorted(fields, key=repr))
        elif name != "cls" and value is not None and value is not False:
            shape.append((name, _value(value, inside)))
    return tuple(shape)


def _value(value: Any, inside: tuple[int, ...]) -> object:
    if hasattr(value, "__struct_fields__"):
        return _shape(value, inside)
    if isinstance(value, tuple):
        return tuple(_value(each, inside) for each in value)
    return value
