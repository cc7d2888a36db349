"""The command line as data, read from its argparse tree: for completion and the manual."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

_FILES = ("DIR", "F", "FILE", "PATH")


class Option(NamedTuple):
    """One option, or with no `flags` one word that is given by its place."""

    flags: tuple[str, ...]
    """Its spellings, "-n" and "--count"."""
    metavar: str
    """What stands for its value; "" when it takes none."""
    choices: tuple[str, ...]
    """The values it may have, when they can be listed."""
    summary: str
    """What it is for, one line."""
    file: bool
    """Its value is the name of a file or a directory."""


class Verb(NamedTuple):
    """One verb, or verb of a verb, of the command."""

    words: tuple[str, ...]
    """What is typed for it: ("put",)."""
    summary: str
    """What it does, one line, no full stop."""
    usage: str
    """How it is called, one line."""
    options: tuple[Option, ...]
    places: tuple[Option, ...]
    """Words that are given by their place."""


def verbs(parser: argparse.ArgumentParser, before: tuple[str, ...] = ()) -> Iterator[Verb]:
    """The verbs below a parser, in their order; those that have verbs of their own come as these.

    The tree has no public reader; what is used of it is the same in Python 3.11 to 3.13.
    """
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, child in action.choices.items():
            words = (*before, name)
            below = tuple(verbs(child, words))
            yield from below
            if not below:
                usage = " ".join(child.format_usage().split()).removeprefix("usage: ")
                found = tuple(_option(each) for each in child._actions)
                yield Verb(
                    words,
                    summaries.get(name, ""),
                    usage,
                    tuple(each for each in found if each.flags),
                    tuple(each for each in found if not each.flags),
                )


def _option(action: argparse.Action) -> Option:
    takes = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Option(
        tuple(action.option_strings),
        metavar if takes else "",
        tuple(map(str, action.choices or ())),
        " ".join((action.help or "").split()) % {"default": action.default, "prog": ""},
        metavar in _FILES,
    )
