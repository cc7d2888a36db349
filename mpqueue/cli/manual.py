"""The manual page, mpqueue(1), made of the argparse tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpqueue.cli import common
from mpqueue.cli.tree import Option, Verb

__all__ = ["page"]

_ENVIRONMENT = (
    ("MPQUEUE_PATH", "stands in for PATH."),
    (
        "MPQUEUE_DURABILITY, MPQUEUE_CAPACITY, ...",
        "options of a queue that init or put makes: MPQUEUE_ and the name of any option of init.",
    ),
    ("MPQUEUE_KEY_FILE", "stands in for --key-file."),
    ("NO_COLOR", "no colours."),
)


def page(description: str, verbs: Sequence[Verb], version: str) -> Iterator[str]:
    """The lines of the page, in the man macros."""
    yield f'.TH MPQUEUE 1 "" "mpqueue {_plain(version)}" "User Commands"'
    yield ".SH NAME"
    yield "mpqueue \\- durable queue in a directory, for many producers and one consumer"
    yield ".SH SYNOPSIS"
    yield ".B mpqueue"
    yield ".I VERB PATH"
    yield "[options]"
    yield ".SH DESCRIPTION"
    yield _plain(description)
    yield "Data goes to stdout, talk to stderr."
    yield "Durations are written 50ms, 10s, 5m, 1h; sizes 64K, 16M, 1G."
    yield ".SH VERBS"
    for verb in verbs:
        yield f".SS {_plain(' '.join(verb.words))}"
        yield _plain(f"{verb.summary[:1].upper()}{verb.summary[1:]}.")
        yield ".PP"
        yield f".B {_plain(verb.usage)}"
        for option in (*verb.places, *verb.options):
            yield from _described(_title(option), option.summary)
    yield ".SH EXIT STATUS"
    for code, meaning in common.EXIT_CODES:
        yield from _described(f"\\fB{code}\\fR", meaning)
    yield ".SH ENVIRONMENT"
    for name, meaning in _ENVIRONMENT:
        yield from _described(f"\\fB{_plain(name)}\\fR", meaning)


def _described(title: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield title
    yield _plain(text or "see above")


def _title(option: Option) -> str:
    value = "|".join(option.choices) or option.metavar
    if not option.flags:
        return f"\\fI{_plain(value)}\\fR"
    flags = ", ".join(f"\\fB{_plain(flag)}\\fR" for flag in option.flags)
    return flags + (f" \\fI{_plain(value)}\\fR" if value else "")


def _plain(text: str) -> str:
    """Text that roff takes for text: a dot in front is a request, a dash may break a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)
