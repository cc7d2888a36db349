"""`mpqueue init`: create a queue with the given options."""

from __future__ import annotations

import argparse

from mpqueue.cli import common, keys


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    keys.add_key_file(parser)
    for name, (convert, text) in common.OPTIONS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=convert, metavar="X", help=text)


def run(args: argparse.Namespace) -> int:
    """Creates the queue, or agrees with the one that is there."""
    given = common.environment_options()
    for name in common.OPTIONS:
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    codec = None
    if args.key_file is not None:
        name = keys.encrypted_name(given.get("codec", "bytes"))
        codec = keys.codec(name, args.key_file)
    with common.make_queue(args.path, given, codec) as queue:
        common.say(f"{queue.path}: queue {queue.uuid} is ready")
    return common.OK
