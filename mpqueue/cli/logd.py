"""`mpqueue logd`: the log records of many processes in one file, with rotation, each line once.

It is the consumer of the queue that `mpqueue.logging.QueueHandler` puts into. A batch is written,
marked in a file beside it, then acked; what comes again after a death is recognised by the mark.
How that holds at any moment is told in `mpqueue.logging.marked`.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpqueue.cli import common, keys

if TYPE_CHECKING:
    import mpqueue

BATCH = 1024
BATCH_BYTES = 8 << 20
DEFAULT = "%(asctime)s %(levelname)s %(name)s[%(process)s] %(message)s"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--file", metavar="F", required=True, help="the file to append to")
    parser.add_argument(
        "--max-bytes",
        metavar="N",
        type=common.size,
        help="rotate F to F.1, F.1 to F.2 and so on before it grows beyond (default: never)",
    )
    parser.add_argument(
        "--backups",
        metavar="N",
        type=common.whole,
        help="how many rotated files are kept (default: all)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        metavar="FORMAT",
        default=DEFAULT,
        help=f"as for logging.Formatter (default: {DEFAULT.replace('%', '%%')})",
    )
    form.add_argument("--jsonl", action="store_true", help="write the JSON object of each record")
    form.add_argument("--raw", action="store_true", help="write bodies as they are, as lines")
    parser.add_argument(
        "--one-line",
        action="store_true",
        help="write line breaks inside an entry as \\n, and a backslash as two",
    )
    parser.add_argument(
        "--until-empty", action="store_true", help="end when nothing is ready, instead of waiting"
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=common.duration,
        default=0.0,
        help="how long to wait while another process is the consumer (default: not at all)",
    )


def run(args: argparse.Namespace) -> int:
    """Ends with 0 when the queue is sealed and drained, or empty with --until-empty."""
    from mpqueue.exceptions import Corrupt, Sealed
    from mpqueue.logging.marked import MarkedFile, position_of

    if args.backups is not None and args.max_bytes is None:
        raise common.UsageError("--backups is of rotated files: give --max-bytes, which rotates")
    if args.max_bytes == 0:
        raise common.UsageError("--max-bytes 0 leaves no room for a line")
    if os.path.exists(args.file) and not os.path.isfile(args.file):
        raise common.UsageError(f"{args.file} is no regular file, which alone can be marked")
    line = _liner(args)
    code = common.OK
    with keys.open_queue(args.path, None) as queue, queue.consumer(wait=args.wait) as consumer:
        try:
            file = MarkedFile(
                args.file,
                queue.uuid,
                synced=queue.options.durability in ("sync", "group"),
                max_bytes=args.max_bytes,
                backups=args.backups,
                say=common.say,
            )
        except BlockingIOError as error:
            common.say(str(error))
            return common.BUSY
        with file:
            timeout = 0.0 if args.until_empty else None
            while True:
                try:
                    items = consumer.reserve_many(BATCH, max_bytes=BATCH_BYTES, timeout=timeout)
                except Sealed:
                    return code
                except Corrupt as error:
                    # Counted and passed: what lies behind it is whole.
                    code = common.DAMAGE
                    common.say(str(error))
                    continue
                if not items:
                    return code
                positions = [position_of(item.id) for item in items]
                file.write(
                    (position, line(item))
                    for position, item in zip(positions, items, strict=True)
                    if not file.holds(position)
                )
                consumer.ack_many(items)


def _liner(args: argparse.Namespace) -> Callable[[mpqueue.Item], bytes]:
    """What makes an item the bytes of its entry; it never fails for what an item may hold."""
    from mpqueue.logging import record as records

    try:
        formatter = logging.Formatter(args.format)
    except ValueError as error:
        raise common.UsageError(f"--format {args.format!r}: {error}") from None
    plain = logging.Formatter(DEFAULT)

    def text_of(item: mpqueue.Item) -> str:
        if args.raw:
            return bytes(item.body).decode("utf-8", "backslashreplace")
        record = records.from_item(item)
        if args.jsonl:
            return records.encode(record).decode("ascii")
        try:
            return formatter.format(record)
        except Exception as error:  # a field that it lacks, say: it must not hold up the others
            why = f"does not fit --format ({type(error).__name__}: {error})"
            return plain.format(records.stand_in(item, why))

    def line(item: mpqueue.Item) -> bytes:
        text = text_of(item)
        if args.one_line and not args.jsonl:  # JSON has escaped them already
            text = text.translate(_ESCAPES)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    return line
