"""`mpqueue relay`: puts the rows of an outbox table into a queue, and deletes them.

What an outbox is and how nothing is lost on the way is told in `mpqueue.outbox`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from mpqueue.cli import common, keys

if TYPE_CHECKING:
    from collections.abc import Iterator


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--sqlite", metavar="F", help="the database file that holds the outbox")
    where.add_argument(
        "--postgres",
        metavar="CONNINFO",
        type=_conninfo,
        help='as for psql; "" takes all of it from PGHOST, PGUSER, PGPASSWORD and so on',
    )
    parser.add_argument(
        "--table",
        metavar="T",
        default="mpqueue_outbox",
        help="the table (default: mpqueue_outbox); made when it is not there",
    )
    parser.add_argument(
        "--batch",
        metavar="N",
        type=common.number(1, 100_000),
        default=100,
        help="rows that are put before they are deleted (default: 100)",
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=common.duration,
        default=0.1,
        help="pause before looking again when no row is there (default: 100ms)",
    )
    parser.add_argument(
        "--until-empty", action="store_true", help="end when no row is left, instead of waiting"
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=common.duration,
        default=0.0,
        help="how long to stand by while another relay runs (default: not at all)",
    )


def _conninfo(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not in UTF-8") from None
    return text


def run(args: argparse.Namespace) -> int:
    """Ends with 0 when no row is left with --until-empty; says how many it put in any case."""
    from mpqueue.outbox import Relay

    with _connection(args) as connection, keys.open_queue(args.path, None) as queue:
        try:
            relay = Relay(connection, queue, table=args.table, batch=args.batch, wait=args.wait)
        except BlockingIOError as error:
            common.say(str(error))
            return common.BUSY
        except ValueError as error:
            raise common.UsageError(f"--table: {error}") from None
        with relay:
            try:
                relay.run(interval=args.interval, until_empty=args.until_empty)
            finally:
                common.say(
                    f"{relay.relayed} relayed, {relay.skipped} skipped, {relay.refused} refused"
                )
    return common.OK


@contextlib.contextmanager
def _connection(args: argparse.Namespace) -> Iterator[Any]:
    """A connection whose errors are those of input and output. UsageError when it cannot be."""
    if args.sqlite is not None:
        import sqlite3

        if not os.path.isfile(args.sqlite):
            raise common.UsageError(f"--sqlite {args.sqlite}: there is no such file")
        try:
            with contextlib.closing(sqlite3.connect(args.sqlite, timeout=60)) as database:
                yield database
        except sqlite3.Error as error:
            raise OSError(f"{args.sqlite}: {error}") from error
        return
    try:
        import psycopg
    except ImportError as error:
        raise common.UsageError(
            f"--postgres needs psycopg, which pip install 'mpqueue[postgres]' brings ({error})"
        ) from None
    try:
        with contextlib.closing(psycopg.connect(args.postgres, autocommit=True)) as session:
            yield session
    except psycopg.Error as error:
        raise OSError(f"PostgreSQL: {' '.join(str(error).split())}") from error
