"""`mpqueue export`: every item that is not acked, read from the files; the queue stays as it is."""

from __future__ import annotations

import argparse
import sys

from mpqueue._words import count
from mpqueue.cli import common, keys, records


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument(
        "--from", dest="start", metavar="SEQ", type=common.seq, help="first seq to write"
    )
    parser.add_argument("--settled", action="store_true", help="also acked items still on disk")
    records.add_format(parser, "jsonl", ("jsonl", "frame"))
    keys.add_key_file(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 5 when items that are owed could not be read, 8 when some could not be decrypted;
    all others were written."""
    from mpqueue.exceptions import CodecError
    from mpqueue.reader import inspect

    out = sys.stdout.buffer
    code = common.OK
    with inspect(args.path) as view:
        codec = keys.reader(view, args.key_file)
        for record in view.items(args.start, unacked_only=not args.settled):
            try:
                body = keys.decrypted(record, codec)
            except CodecError as error:
                common.say(f"{error}; it was left out")
                code = common.UNDECODABLE
                continue
            records.write_item(out, record, body, args.format)
        out.flush()
        if view.unreadable:
            common.say(
                f"{args.path}: {count(view.unreadable, 'item', 'are')} damaged and left out; "
                "`mpqueue verify` says which"
            )
            return common.DAMAGE
    return code
