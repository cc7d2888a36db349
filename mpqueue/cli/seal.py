"""`mpqueue seal`: no more puts in any process; the consumer drains, then ends."""

from __future__ import annotations

import argparse

from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--undo", action="store_true", help="lift the seal")


def run(args: argparse.Namespace) -> int:
    """Seals or unseals, durably."""
    with common.open_queue(args.path) as queue:
        queue.seal(undo=args.undo)
    return common.OK
