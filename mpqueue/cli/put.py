"""`mpqueue put`: append items from stdin, as they arrive, or a file as one item."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpqueue._words import count
from mpqueue.cli import common, keys, records

if TYPE_CHECKING:
    import mpqueue
    from mpqueue.codecs import Codec


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    records.add_format(parser, "lines", ("lines", "null", "jsonl", "frame"))
    parser.set_defaults(format=None)  # so that a format beside --file is seen
    keys.add_key_file(parser)
    parser.add_argument("--file", metavar="F", help="put the content of this file as one item")
    parser.add_argument(
        "--header", metavar="K=V", action="append", default=[], help="a header for every item"
    )
    parser.add_argument(
        "--on-full",
        choices=("block", "fail", "drop"),
        default="block",
        help="when there is no room (default: block)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=common.duration,
        help="how long to wait for room (default: for ever, with fail and drop not at all)",
    )
    parser.add_argument(
        "--key-from",
        metavar="WHAT",
        help="put each key once: what stands in a line before WHAT (\\t is a tab), or with --jsonl "
        "the field WHAT, as in headers.order; needs a queue with key_window",
    )
    parser.add_argument("--key", metavar="K", help="with --file: its key")
    parser.add_argument("--print-seq", action="store_true", help="print the seq of each item")


class _Putter:
    """Puts batches by the chosen policy and counts what happened."""

    def __init__(
        self, queue: mpqueue.Queue, args: argparse.Namespace, headers: dict[str, str]
    ) -> None:
        self._queue = queue
        self._headers = headers
        self._block = args.on_full == "block" or args.timeout is not None
        self._timeout = args.timeout
        self._drop = args.on_full == "drop"
        self._print = args.print_seq
        self.accepted = 0
        self.dropped = 0

    def put_before(self) -> int:
        """How many items are in the queue; an interrupt may have come before they were counted."""
        own = self._queue.incarnation
        entries = (m.items_enqueued for m in self._queue.members() if m.incarnation == own)
        return max(self.accepted, next(entries, 0))

    def put(self, entries: list[records.Entry]) -> None:
        """Puts all of them; under "drop" those without room are counted instead."""
        plain: list[records.Entry] = []
        for entry in entries:
            if entry.headers is None and not self._headers:
                plain.append(entry)
                continue
            self._put_plain(plain)
            plain = []
            headers = {**self._headers, **(entry.headers or {})}
            self._put_one(entry, headers, self._block)
        self._put_plain(plain)

    def _put_together(self, entries: list[records.Entry]) -> list[Sequence[int]]:
        bodies = [entry.body for entry in entries]
        wait = self._block and not self._drop
        if entries[0].key is None:
            return [*self._queue.put_many(bodies, atomic=False, block=wait, timeout=self._timeout)]
        keys = [entry.key for entry in entries]
        return [
            self._queue.put_many(bodies, atomic=False, block=wait, timeout=self._timeout, keys=keys)
        ]

    def _put_plain(self, entries: list[records.Entry]) -> None:
        from mpqueue.exceptions import Full

        rest, wait = entries, self._block
        if len(entries) > 1:
            try:
                ranges = self._put_together(entries)
            except BaseException as error:
                accepted = getattr(error, "accepted", 0)
                self.accepted += accepted
                if not isinstance(error, Full):
                    raise
                # There was no room for a whole batch; there may be for some of its items.
                rest, wait = entries[accepted:], wait and self._drop
            else:
                for seqs in ranges:
                    self._done(seqs)
                return
        for entry in rest:
            self._put_one(entry, None, wait)

    def _put_one(self, entry: records.Entry, headers: dict[str, str] | None, wait: bool) -> None:
        problem = records.headers_problem(headers) if headers else ""
        if problem:
            raise common.UsageError(problem)
        try:
            seq = self._queue.put(
                entry.body,
                wait,
                self._timeout,
                on_full="drop" if self._drop else "raise",
                headers=headers,
                key=entry.key,
            )
        except BaseException as error:
            self.accepted += getattr(error, "accepted", 0)
            raise
        if seq is None:
            self.dropped += 1
        else:
            self._done((seq,))

    def _done(self, seqs: Sequence[int]) -> None:
        """Counts first: they are in the queue, whether or not their numbers can be printed."""
        self.accepted += len(seqs)
        if self._print:
            for seq in seqs:
                print(seq)
            sys.stdout.flush()


def run(args: argparse.Namespace) -> int:
    """Puts until the input ends. The queue is made when it is not there, and that is said."""
    if args.file is not None and args.format is not None:
        raise common.UsageError(
            "--file puts a whole file as one item: leave the format of items out, or give the file "
            "as stdin"
        )
    exists = os.path.exists(os.path.join(args.path, "meta"))
    options = {} if exists else common.environment_options()
    headers = _headers(args.header)
    key_from, key = _keys(args)
    with common.make_queue(args.path, options, _codec(args, exists, options)) as queue:
        if not exists:
            common.say(f"{queue.path}: there was no queue, made one")
        putter = _Putter(queue, args, headers)
        most, form = queue.options.max_item, args.format or "lines"
        try:
            if args.file is not None:
                with open(args.file, "rb") as file:
                    putter.put([records.Entry(file.read(most + 1), None, key)])
            else:
                for entries in records.read_batches(sys.stdin.fileno(), form, most, key_from):
                    putter.put(entries)
        except BaseException:
            common.say(f"{count(putter.put_before(), 'item', 'were')} put before this")
            raise
    if putter.dropped:
        common.say(f"{count(putter.dropped, 'item', 'were')} dropped: {args.path} was full")
    return common.OK


def _codec(args: argparse.Namespace, exists: bool, options: Mapping[str, Any]) -> Codec[Any] | None:
    """What encrypts; None where nothing does. Refuses to put plaintext where that is not meant."""
    name = keys.recorded(args.path) if exists else options.get("codec", "bytes")
    encrypts = keys.is_encrypted(name)
    if args.key_file is None:
        if encrypts:
            raise keys.refusal(args.path, name)
        return None
    if exists and not encrypts:
        raise common.UsageError(
            f"{args.path}: this queue is not encrypted (codec {name}): leave --key-file and "
            "MPQUEUE_KEY_FILE out, or init another one"
        )
    return keys.codec(keys.encrypted_name(name), args.key_file)


def _headers(texts: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in texts:
        key, value = _header(text)
        if key in headers:
            raise common.UsageError(f"--header {key!r} is given twice")
        headers[key] = value
    problem = records.headers_problem(headers)
    if problem:
        raise common.UsageError(f"--header: {problem}")
    return headers


def _keys(args: argparse.Namespace) -> tuple[str | None, bytes | None]:
    if args.key is not None and args.file is None:
        raise common.UsageError("--key is for --file; items of the input have --key-from")
    if args.key_from is not None and (args.file is not None or args.format == "u32"):
        raise common.UsageError("--key-from is for lines, --null and --jsonl")
    if args.key_from == "":
        raise common.UsageError("--key-from is empty: it ends the key, or is the name of a field")
    key = None if args.key is None else os.fsencode(args.key)
    if key is not None and not 1 <= len(key) <= records.KEY_MAX:
        raise common.UsageError(
            f"--key has {len(key)} bytes: 1 to {records.KEY_MAX:,} are possible"
        )
    key_from = args.key_from
    if key_from is not None and args.format != "jsonl":
        key_from = key_from.replace("\\t", "\t")
    return key_from, key


def _header(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise common.UsageError(f"--header {text!r} is not KEY=VALUE")
    problem = records.headers_problem({key: value})
    if problem:
        raise common.UsageError(f"--header {key!r}: {problem}")
    return key, value
