"""Frozen records with documented fields, without the import cost of dataclasses or typing."""

from __future__ import annotations


class Record:
    """Base of Stats, Options, Member and Repair: the annotations of the class are its fields.

    Immutable, comparable, picklable; `_asdict()` gives a new dict in the order of the fields.
    """

    def __init__(self, **values: object) -> None:
        if values.keys() != type(self).__annotations__.keys():
            wrong = values.keys() ^ type(self).__annotations__.keys()
            raise TypeError(f"{type(self).__name__}: wrong fields: {', '.join(sorted(wrong))}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is a snapshot: its fields cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is a snapshot: its fields cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({fields})"

    def _asdict(self) -> dict[str, object]:
        """A new dict of all fields, in the order of their declaration."""
        return {name: self.__dict__[name] for name in type(self).__annotations__}
