"""`mpqueue get`: reserve, write, flush stdout, then ack.

What could not be written comes again. What a pipe took counts as delivered, though its reader may
die before it reads it: the pipe holds up to 64 KiB. For more than that, ack in the handler itself.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from typing import TYPE_CHECKING

from mpqueue.cli import common, records

if TYPE_CHECKING:
    import mpqueue

BATCH = 256
LOOK_S = 0.5  # how often a waiting get looks whether anybody still reads what it writes


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
    parser.add_argument(
        "--wait",
        metavar="S",
        type=common.duration,
        default=0.0,
        help="how long to wait while another process is the consumer (default: not at all)",
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
    with common.open_queue(args.path) as queue, queue.consumer(wait=args.wait) as consumer:
        while not limit or done < limit:
            wanted = min(limit - done, BATCH) if limit else BATCH
            try:
                items = _next(consumer, wanted, timeout)
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


def _next(consumer: mpqueue.Consumer, wanted: int, timeout: float | None) -> list[mpqueue.Item]:
    """Waits in slices: a reader that went away is noticed without an item to write."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = LOOK_S if end is None else min(LOOK_S, max(0.0, end - time.monotonic()))
        items = consumer.reserve_many(wanted, timeout=left)
        if items or (end is not None and time.monotonic() >= end):
            return items
        if _reader_gone():
            raise BrokenPipeError


def _reader_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _end(done: int, damage: bool, nothing: int) -> int:
    """Damage outweighs all; having got something outweighs the reason why it ended."""
    if damage:
        return common.DAMAGE
    return common.OK if done else nothing
