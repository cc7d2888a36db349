"""`mpqueue dead`: dead letters: list and show them, put them back, drop them."""

from __future__ import annotations

import argparse
import base64
import json
import os
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from mpqueue.cli import common

if TYPE_CHECKING:
    from mpqueue.dead import DeadLetter

_ACTIONS = ("list", "show", "retry", "drop")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=_ACTIONS,
        help="list (a line for each, oldest first), show (everything about some), retry (put some "
        "back into the queue, as the items that they were) or drop (remove some for good)",
    )
    common.add_path(parser)
    parser.add_argument("seqs", metavar="SEQ", nargs="*", type=common.seq, help="of these only")
    parser.add_argument("--reason", metavar="TEXT", help="those with this reason only")
    parser.add_argument(
        "-n", dest="count", metavar="N", type=common.whole, help="at most N, oldest first"
    )
    parser.add_argument("--all", action="store_true", help="retry, drop: all of them")
    parser.add_argument(
        "--older", metavar="T", type=common.duration, help="drop: those older than this"
    )
    keep = common.number(0, common.COUNT_MAX)
    parser.add_argument("--keep", metavar="N", type=keep, help="drop: all but the newest N")
    parser.add_argument("--json", action="store_true", help="one JSON object a line; or the count")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when no letter was concerned."""
    stands_in = os.environ.get("MPQUEUE_PATH")
    if stands_in and args.path != stands_in and args.path.isdecimal():
        args.path, args.seqs = stands_in, [int(args.path), *args.seqs]
    if args.action != "drop" and (args.older is not None or args.keep is not None):
        raise common.UsageError(f"dead {args.action}: --older and --keep are of drop")
    return {"list": _list, "show": _show, "retry": _retry, "drop": _drop}[args.action](args)


def _selects(args: argparse.Namespace) -> Callable[[DeadLetter], bool]:
    seqs, reason = set(args.seqs), args.reason
    return lambda letter: (
        (not seqs or letter.seq in seqs) and (reason is None or letter.reason == reason)
    )


def _letters(args: argparse.Namespace) -> list[DeadLetter]:
    """Those that are asked for, read from the files: nothing is joined."""
    from mpqueue.dead import letters_of
    from mpqueue.reader import inspect

    with inspect(args.path) as view:
        dead = view.path / "dead"
    if not (dead / "meta").exists():
        return []
    with inspect(dead) as view:
        return list(islice(filter(_selects(args), letters_of(view)), args.count))


def _list(args: argparse.Namespace) -> int:
    letters = _letters(args)
    for letter in letters:
        if args.json:
            print(json.dumps(_as_json(letter)))
            continue
        age = common.human_time(max(0.0, time.time() - letter.dead_at))
        body = letter.body[:40].decode("utf-8", "backslashreplace")
        failure = f"  {letter.last_failure[:60]!r}" if letter.last_failure else ""
        print(
            f"{letter.seq}  {age} ago  {letter.attempts} attempts  {letter.reason[:40]!r}"
            f"{failure}  {body!r}"
        )
    return common.OK if letters else common.EMPTY


def _show(args: argparse.Namespace) -> int:
    letters = _letters(args)
    for letter in letters:
        if args.json:
            print(json.dumps(_as_json(letter)))
        else:
            common.table(list(_as_json(letter).items()))
    return common.OK if letters else common.EMPTY


def _retry(args: argparse.Namespace) -> int:
    _check_chosen(args, bool(args.seqs or args.reason is not None or args.all or args.count))
    with common.open_queue(args.path) as queue:
        number = queue.dead.redrive(_selects(args), limit=args.count)
    return _report(args, "put back", number)


def _drop(args: argparse.Namespace) -> int:
    by_age = args.older is not None or args.keep is not None
    by_choice = bool(args.seqs or args.reason is not None or args.all or args.count)
    _check_chosen(args, by_age or by_choice)
    number = 0
    with common.open_queue(args.path) as queue:
        if by_choice:
            number += queue.dead.drop(_selects(args), limit=args.count)
        if by_age:
            number += queue.dead.sweep(older=args.older, keep=args.keep)
    return _report(args, "dropped", number)


def _check_chosen(args: argparse.Namespace, chosen: bool) -> None:
    if not chosen:
        raise common.UsageError(f"dead {args.action}: say which: SEQ..., --reason, -n or --all")


def _report(args: argparse.Namespace, what: str, number: int) -> int:
    if args.json:
        common.print_json({what.replace(" ", "_"): number})
    else:
        common.say(f"{number} {what}")
    return common.OK if number else common.EMPTY


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    """All fields; a body that is not UTF-8 becomes body_base64."""
    value = letter._asdict()
    body = letter.body
    del value["body"]
    try:
        value["body"] = body.decode()
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(body).decode()
    return value
