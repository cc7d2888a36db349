"""`mpqueue destroy`: remove a queue from disk; refused while anyone is attached."""

from __future__ import annotations

import argparse

from mpqueue._words import count
from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--yes", action="store_true", help="also with items in it")


def run(args: argparse.Namespace) -> int:
    """Without --yes only an empty queue is removed; nothing is ever asked."""
    import mpqueue
    from mpqueue.reader import inspect

    if not args.yes:
        with inspect(args.path) as view:
            owed = view.counts().depth
        if owed:
            items = count(owed, "item")
            raise common.UsageError(f"{args.path} holds {items}; destroy --yes removes all")
    mpqueue.destroy(args.path)
    return common.OK
