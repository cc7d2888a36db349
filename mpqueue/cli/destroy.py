"""`mpqueue destroy`: remove a queue from disk; refused while anyone is attached."""

from __future__ import annotations

import argparse
import os

from mpqueue._words import count
from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--yes", action="store_true", help="also with items or dead letters in it")


def run(args: argparse.Namespace) -> int:
    """Without --yes only an empty queue without dead letters is removed; nothing is ever asked."""
    import mpqueue
    from mpqueue.dead import DIRECTORY

    if not args.yes:
        holds = []
        if owed := _depth(args.path):
            holds.append(count(owed, "item"))
        dead = os.path.join(args.path, DIRECTORY)
        if os.path.lexists(os.path.join(dead, "meta")) and (letters := _depth(dead)):
            holds.append(count(letters, "dead letter"))
        if holds:
            held = " and ".join(holds)
            raise common.UsageError(f"{args.path} holds {held}; destroy --yes removes all")
    mpqueue.destroy(args.path)
    return common.OK


def _depth(path: str) -> int:
    from mpqueue.reader import inspect

    with inspect(path) as view:
        return view.counts().depth
