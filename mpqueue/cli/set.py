"""`mpqueue set`: change options of a queue, for all processes, durably."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("options", metavar="OPTION=VALUE", nargs="+", help="for example retain=10m")


def run(args: argparse.Namespace) -> int:
    """Applies all of them in one step."""
    from mpqueue.exceptions import MpqueueError

    given: dict[str, Any] = {}
    path, texts = args.path, args.options
    if os.environ.get("MPQUEUE_PATH") and _name(path) in common.OPTIONS and "=" in path:
        path, texts = os.environ["MPQUEUE_PATH"], [path, *texts]
    for text in texts:
        _, separator, value = text.partition("=")
        name = _name(text)
        if not separator or name not in common.OPTIONS:
            known = ", ".join(name for name in common.OPTIONS if name not in common.FIXED)
            raise common.UsageError(f"{text!r} is not OPTION=VALUE with one of: {known}")
        try:
            given[name] = common.OPTIONS[name][0](value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise common.UsageError(f"{name}: {error}") from None
    with common.open_queue(path) as queue:
        try:
            queue.set_options(**common.option_values(given))
        except MpqueueError:
            raise
        except (TypeError, ValueError) as error:
            raise common.UsageError(str(error)) from None
    return common.OK


def _name(text: str) -> str:
    return text.partition("=")[0].replace("-", "_")
