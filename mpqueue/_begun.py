"""What has state of its own begins once: a second `__init__()` changes nothing."""

from __future__ import annotations

__all__ = ["refuse_again"]


def refuse_again(thing: object, last: str) -> None:
    """Raises TypeError when `thing` has the attribute that its `__init__()` sets last."""
    if last in vars(thing):
        name = type(thing).__name__
        raise TypeError(f"this {name} has begun already: its __init__() runs once; make another")
