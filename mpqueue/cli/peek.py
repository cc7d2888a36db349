"""`mpqueue peek`: the next items, read from the files without the consumer role."""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from typing import TYPE_CHECKING

from mpqueue.cli import common, keys, records

if TYPE_CHECKING:
    from mpqueue.reader import Record


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
    keys.add_key_file(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when there is nothing to show, 8 when one of the items cannot be decrypted."""
    from mpqueue.exceptions import CodecError
    from mpqueue.reader import inspect

    shown = 0
    code = common.OK
    with inspect(args.path) as view:
        codec = keys.reader(view, args.key_file)
        for record in islice(view.items(args.start), args.count):
            shown += 1
            try:
                body = keys.decrypted(record, codec)
            except CodecError as error:
                common.say(str(error))
                code = common.UNDECODABLE
                continue
            if args.json:
                print(json.dumps(records.as_json(record, body)))
            else:
                print(_line(record, body))
    return code if shown else common.EMPTY


def _line(record: Record, body: bytes) -> str:
    age = common.human_time(max(0.0, time.time() - record.enqueued_at))
    text = body[:60].decode("utf-8", "backslashreplace")
    more = "..." if len(body) > 60 else ""
    tries = f"  attempt {record.attempts}" if record.attempts else ""
    headers = f"  {record.headers}" if record.headers else ""
    return f"{record.seq}  {age} ago  {len(body)} B{tries}{headers}  {text!r}{more}"
