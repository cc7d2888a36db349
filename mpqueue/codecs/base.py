"""What the codecs of this package share: identity by arguments, and libraries on demand."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Base:
    """A codec that pickles, compares and shows as the call that made it."""

    name: str
    """Of the stored form, as the queue records it."""

    _arguments: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments))})"


def library(module: str, extra: str) -> Any:
    """A module that an extra of mpqueue brings. Raises ImportError that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this codec needs {module}, which cannot be imported ({error}): "
            f"pip install 'mpqueue[{extra}]'",
            name=module,
        ) from error
