"""`mpqueue exec`: runs a command for each item, several at once, until it succeeds or is given up.

How it holds items is told in `mpqueue.cli.exec_worker`.
"""

from __future__ import annotations

import argparse
import selectors
import shutil

from mpqueue.cli import common, keys
from mpqueue.cli.exec_command import Guard
from mpqueue.cli.exec_signals import Signals
from mpqueue.cli.exec_worker import ATTEMPTS, Worker


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    parser.usage = "%(prog)s [options] PATH -- CMD [ARG ...]"
    common.add_path(parser)
    parser.add_argument(
        "command",
        metavar="CMD",
        nargs="*",
        help="what is run for each item, behind --; 0 acks, 75 is not its fault and comes again, "
        "65 and 100 make a dead letter, all else is a failed attempt",
    )
    parser.add_argument(
        "-j",
        dest="jobs",
        metavar="N",
        type=common.number(1, 1024),
        default=1,
        help="at most N commands at once (default: 1)",
    )
    parser.add_argument(
        "--max-attempts",
        metavar="N",
        type=common.number(1, 65535),
        help="attempts after which an item is a dead letter, if the queue's own max_attempts is "
        f"not less (default: that of the queue, {ATTEMPTS} where it has none)",
    )
    parser.add_argument(
        "--backoff",
        metavar="S,...",
        type=_delays,
        default=(),
        help="time before the second attempt, before the third and so on, the last one for all "
        "further ones: 1m,5m,15m (default: none)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_above_zero,
        help="end a command after this, by SIGTERM to its process group (default: never)",
    )
    parser.add_argument(
        "--kill-after",
        metavar="S",
        type=common.duration,
        default=5.0,
        help="time from the SIGTERM of --timeout to SIGKILL (default: 5s)",
    )
    parser.add_argument(
        "--until-empty",
        action="store_true",
        help="end when nothing is ready, at work or waiting for its next attempt",
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=common.duration,
        default=0.0,
        help="how long to wait while another process is the consumer (default: not at all)",
    )
    keys.add_key_file(parser)


def _delays(text: str) -> tuple[float, ...]:
    return tuple(common.duration(part) for part in text.split(","))


def _above_zero(text: str) -> float:
    seconds = common.duration(text)
    if seconds == 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time: it is to be above 0")
    return seconds


def run(args: argparse.Namespace) -> int:
    """0 when the queue is sealed and drained, or empty with --until-empty; 9 when items failed."""
    if not args.command:
        raise common.UsageError("exec: there is no command: exec PATH -- CMD ARG ...")
    if shutil.which(args.command[0]) is None:
        raise common.UsageError(f"exec: {args.command[0]}: no such command, or it may not be run")
    with (
        keys.open_queue(args.path, args.key_file) as queue,
        queue.consumer(wait=args.wait, views=True) as consumer,
        Signals() as signals,
        selectors.PollSelector() as selector,
        Guard() as guard,
    ):
        worker = Worker(args, queue, consumer, signals, selector, guard)
        try:
            worker.work()
        finally:
            worker.close()
    return worker.code()
