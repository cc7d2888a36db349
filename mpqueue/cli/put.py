"""`mpqueue put`: append items from stdin, as they arrive, or a file as one item."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mpqueue.cli import common, records

if TYPE_CHECKING:
    import mpqueue


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    records.add_format(parser, "lines", ("lines", "null", "jsonl", "frame"))
    parser.add_argument("--file", metavar="F", help="put the content of this file as one item")
    parser.add_argument(
        "--header", metavar="K=V", action="append", default=[], help="a header for every item"
    )
    parser.add_argument(
        "--on-full",
        choices=("block", "fail", "drop"),
        default="block",
        help="when there is no room",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=common.duration, help="how long to wait for room"
    )
    parser.add_argument("--print-seq", action="store_true", help="print the seq of each item")


class _Putter:
    """Puts batches by the chosen policy and counts what happened."""

    def __init__(self, queue: mpqueue.Queue, args: argparse.Namespace) -> None:
        self._queue = queue
        self._headers = dict(_header(text) for text in args.header)
        self._block = args.on_full == "block" or args.timeout is not None
        self._timeout = args.timeout
        self._drop = args.on_full == "drop"
        self._print = args.print_seq
        self.accepted = 0
        self.dropped = 0

    def put(self, entries: list[records.Entry]) -> None:
        """Puts all of them; under "drop" those without room are counted instead."""
        plain: list[bytes] = []
        for entry in entries:
            if entry.headers is None and not self._headers:
                plain.append(entry.body)
                continue
            self._put_plain(plain)
            plain = []
            self._put_one(entry.body, {**self._headers, **(entry.headers or {})})
        self._put_plain(plain)

    def _put_plain(self, bodies: list[bytes]) -> None:
        from mpqueue.exceptions import Full

        if len(bodies) > 1 and not self._drop:
            try:
                ranges = self._queue.put_many(
                    bodies, atomic=False, block=self._block, timeout=self._timeout
                )
            except Exception as error:
                self.accepted += getattr(error, "accepted", 0)
                raise
            for seqs in ranges:
                self._done(seqs)
            return
        rest = bodies
        if len(bodies) > 1:
            try:
                for seqs in self._queue.put_many(bodies, atomic=False, block=False):
                    self._done(seqs)
                return
            except Full as error:
                accepted = getattr(error, "accepted", 0)
                self.accepted += accepted
                rest = bodies[accepted:]
        for body in rest:
            self._put_one(body, None)

    def _put_one(self, body: bytes, headers: dict[str, str] | None) -> None:
        seq = self._queue.put(
            body,
            self._block,
            self._timeout,
            on_full="drop" if self._drop else "raise",
            headers=headers,
        )
        if seq is None:
            self.dropped += 1
        else:
            self._done((seq,))

    def _done(self, seqs: Iterable[int]) -> None:
        count = 0
        for seq in seqs:
            count += 1
            if self._print:
                print(seq)
        self.accepted += count
        if self._print:
            sys.stdout.flush()


def run(args: argparse.Namespace) -> int:
    """Puts until the input ends. The queue is created when it is not there."""
    import mpqueue

    exists = os.path.exists(os.path.join(args.path, "meta"))
    options = {} if exists else common.option_values(common.environment_options())
    with mpqueue.Queue(args.path, **options) as queue:
        putter = _Putter(queue, args)
        try:
            if args.file is not None:
                putter.put([records.Entry(Path(args.file).read_bytes(), None)])
            else:
                for entries in records.read_batches(sys.stdin.fileno(), args.format):
                    putter.put(entries)
        except BaseException:
            common.say(f"{putter.accepted} items were put before this")
            raise
    if putter.dropped:
        common.say(f"{putter.dropped} items were dropped: {args.path} was full")
    return common.OK


def _header(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise common.UsageError(f"--header {text!r} is not KEY=VALUE")
    return key, value
