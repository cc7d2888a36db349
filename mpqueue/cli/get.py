"""`mpqueue get`: reserve, write, flush stdout, then ack.

What could not be written comes again. What a pipe took counts as delivered, though its reader may
die before it reads it: the pipe holds up to 64 KiB. For more than that, ack in the handler itself.
"""

from __future__ import annotations

import argparse
import sys

from mpqueue.cli import common, records

BATCH = 256


def _count(text: str) -> int:
    return 0 if text == "all" else common.whole(text)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument(
        "-n",
        dest="count",
        metavar="N",
        type=_count,
        help='at most N items, or "all" (default: 1, with --follow all)',
    )
    parser.add_argument("--follow", action="store_true", help="go on until the queue is sealed")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=common.duration,
        help="how long to wait for the next item (default: not at all, with --follow for ever)",
    )
    records.add_format(parser, "lines", ("lines", "null", "jsonl", "frame"))


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when nothing was there, 124 when nothing came in time, 3 when sealed and drained.

    `--follow` that ends because the queue was sealed is an orderly end: 0.
    """
    from mpqueue.exceptions import Corrupt, Sealed

    follow = args.follow
    limit = args.count if args.count is not None else (0 if follow else 1)
    timeout = args.timeout if args.timeout is not None else (None if follow else 0.0)
    out = sys.stdout.buffer
    done = 0
    damage = False
    with common.open_queue(args.path) as queue, queue.consumer() as consumer:
        while not limit or done < limit:
            wanted = min(limit - done, BATCH) if limit else BATCH
            try:
                items = consumer.reserve_many(wanted, timeout=timeout)
            except Sealed:
                return _end(done, damage, common.OK if follow else common.SEALED)
            except Corrupt as error:
                # Counted and passed: what lies behind it is whole.
                damage = True
                common.say(str(error))
                continue
            if not items:
                code = common.TIMEOUT if timeout else common.EMPTY
                return _end(done, damage, code)
            for item in items:
                records.write_item(out, item, args.format)
            out.flush()
            consumer.ack_many(items)
            done += len(items)
    return _end(done, damage, common.OK)


def _end(done: int, damage: bool, nothing: int) -> int:
    """Damage outweighs all; having got something outweighs the reason why it ended."""
    if damage:
        return common.DAMAGE
    return common.OK if done else nothing
