"""`mpqueue peek`: the next items, read from the files without the consumer role."""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice

from mpqueue.cli import common, records


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument(
        "-n",
        dest="count",
        metavar="N",
        type=common.whole,
        default=10,
        help="at most N items (default: 10)",
    )
    parser.add_argument(
        "--from", dest="start", metavar="SEQ", type=common.seq, help="first seq to show"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, whole bodies")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when there is nothing to show."""
    from mpqueue.reader import inspect

    shown = 0
    with inspect(args.path) as view:
        for record in islice(view.items(args.start), args.count):
            shown += 1
            if args.json:
                print(json.dumps(records.as_json(record)))
                continue
            age = common.human_time(max(0.0, time.time() - record.enqueued_at))
            text = record.body[:60].decode("utf-8", "backslashreplace")
            more = "..." if len(record.body) > 60 else ""
            tries = f"  attempt {record.attempts}" if record.attempts else ""
            print(f"{record.seq}  {age} ago  {len(record.body)} B{tries}  {text!r}{more}")
    return common.OK if shown else common.EMPTY
