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

from mpqueue.cli import common, keys, records

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
    parser.add_argument(
        "--undecodable",
        choices=("stop", "keep", "skip", "dead"),
        default="stop",
        help="at an item that cannot be decoded or decrypted: stop there, keep it in the queue and "
        "go on, skip it for good, or move it to the dead letters (default: stop)",
    )
    records.add_format(parser, "lines", ("lines", "null", "jsonl", "frame"))
    keys.add_key_file(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when nothing was there, 124 when nothing came in time, 3 when sealed and drained.

    `--follow` that ends because the queue was sealed is an orderly end: 0. 8 at the end when an
    item could not be decoded.
    """
    from mpqueue.exceptions import Corrupt, Sealed

    follow = args.follow
    limit = args.count if args.count is not None else (0 if follow else 1)
    timeout = args.timeout if args.timeout is not None else (None if follow else 0.0)
    with (
        keys.open_queue(args.path, args.key_file) as queue,
        queue.consumer(wait=args.wait) as consumer,
    ):
        taker = _Taker(consumer, args.format, args.undecodable)
        while not limit or taker.done < limit:
            wanted = min(limit - taker.done, BATCH) if limit else BATCH
            try:
                items = _next(consumer, wanted, timeout)
            except Sealed:
                return taker.end(common.OK if follow else common.SEALED)
            except Corrupt as error:
                # Counted and passed: what lies behind it is whole.
                taker.damage = True
                common.say(str(error))
                continue
            if not items:
                return taker.end(common.TIMEOUT if timeout else common.EMPTY)
            if not taker.take(items):
                break
        return taker.end(common.OK)


class _Taker:
    """Writes items, then acks them, and knows what happened on the way."""

    def __init__(self, consumer: mpqueue.Consumer, form: str, policy: str) -> None:
        self._consumer = consumer
        self._form = form
        self._policy = policy
        self._kept: list[mpqueue.Item] = []  # in hand to the end, so that they do not come again
        self.done = 0
        self.damage = False
        self.undecodable = False

    def take(self, items: list[mpqueue.Item]) -> bool:
        """Writes and acks; False where an item that cannot be decoded is to end it."""
        from mpqueue.exceptions import CodecError

        out = sys.stdout.buffer
        written = []
        error = None
        for item in items:
            try:
                body = item.value
            except CodecError as failure:
                self.undecodable = True
                common.say(str(failure))
                if self._policy == "stop":
                    error = failure
                    break
                if self._policy == "dead":
                    item.dead("cannot be decoded")
                else:
                    self._kept.append(item)
                continue
            records.write_item(out, item, bytes(body), self._form)
            written.append(item)
        out.flush()
        self._consumer.ack_many(written)
        self.done += len(written)
        if error is not None:
            for item in items[len(written) :]:
                item.nack()
            common.say(
                "stopped there, and it stays: --undecodable keep goes on behind it, "
                "--undecodable skip drops it, --undecodable dead moves it to the dead letters"
            )
        elif self._policy == "skip":
            self._skip()
        return error is None

    def _skip(self) -> None:
        """Everything before it is in hand or acked, so each is what comes next once it is back."""
        for item in self._kept:
            item.nack()
            self._consumer.skip()
        self._kept = []

    def end(self, nothing: int) -> int:
        """Damage outweighs all; having got something outweighs the reason why it ended."""
        for item in self._kept:
            item.nack()
        if self.damage:
            return common.DAMAGE
        if self.undecodable:
            return common.UNDECODABLE
        return common.OK if self.done else nothing


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
