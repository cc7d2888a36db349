"""Counts in sentences: one item is, two items are."""

from __future__ import annotations

__all__ = ["count"]

_SINGULAR = {"are": "is", "were": "was"}


def count(number: int, noun: str, verb: str = "") -> str:
    """`count(1, "item", "are")` is "1 item is", `count(2, "item", "are")` is "2 items are"."""
    words = [str(number), noun if number == 1 else f"{noun}s"]
    if verb:
        words.append(_SINGULAR.get(verb, verb) if number == 1 else verb)
    return " ".join(words)
