"""The command line: `mpqueue VERB`, also `python -m mpqueue VERB`.

One module a verb, imported only when that verb is used. Data goes to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

VERBS = {
    "init": "create a queue",
    "put": "append items from stdin or a file; makes the queue when it is not there",
    "get": "take one item, or more: write, flush, then ack",
    "exec": "run a command for each item, with retries, time-outs and dead letters",
    "peek": "look at what is next, without the consumer role",
    "stats": "depth, counters, losses and who is attached",
    "top": "rates, depth, age, flush times, members and segments, as they change",
    "metrics": "numbers for Prometheus: as text, into a file, over HTTP",
    "set": "change options of a queue",
    "seal": "end the input for every process",
    "destroy": "remove a queue from disk",
    "verify": "check headers, with --deep every byte, and count again; changes nothing",
    "repair": "settle damage once and for all, saving the damaged bytes",
    "export": "write all items that are not acked, also from a damaged queue",
    "dead": "dead letters: list, show, retry, drop",
    "doctor": "what is wrong, or could be, each with advice",
    "relay": "rows of an outbox table of SQLite or PostgreSQL into the queue",
    "logd": "log records of many processes into one rotated file, each line once",
    "bench": "measure this machine",
    "demo": "many producers, one consumer, kills on the way: count what was lost",
}


class Verb(Protocol):
    """What a verb's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Does the work; returns the exit code."""


class _Parser(argparse.ArgumentParser):
    """One whose help fails, as all output does, when it cannot be written."""

    runs_command = False
    """What is behind the first "--" is a command, whatever its words look like: `args.command`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As it is documented, but for `runs_command`."""
        if not self.runs_command:
            return super().parse_known_args(args, namespace)
        words = list(args)
        at = words.index("--") if "--" in words else len(words)
        found, rest = super().parse_known_args(words[:at], namespace)
        if found.command or not all(word.startswith("-") for word in rest):
            self.error("-- is to stand before the command")
        found.command = words[at + 1 :]
        return found, rest

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message:
            (file or sys.stderr).write(message)


def build_parser(configured: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The argument tree; only the verbs in `configured` (None: all) get their arguments."""
    parser = _Parser(
        prog="mpqueue",
        description="A durable queue shared by processes: many producers, one consumer.",
        epilog="Exit codes: 0 ok, 1 empty, 2 usage, 3 sealed, 4 consumer attached, 5 damage, "
        "6 full, 7 refused to open, 8 an item cannot be decoded, 9 dead letters, 74 I/O error, "
        "124 timeout, 130, 141 and 143 signals.",
    )
    parser.add_argument("--version", action=_Version)
    parser.add_argument("--completion", action=_Completion)
    parser.add_argument("--manual", action=_Manual)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        sentence = f"{summary[:1].upper()}{summary[1:]}."
        child = verbs.add_parser(name, help=summary, description=sentence)
        child.runs_command = name == "exec"
        if configured is None or name in configured:
            verb = _verb(name)
            verb.configure(child)
            child.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse's own exits raise SystemExit."""
    from mpqueue.cli import common

    number = 0
    try:
        with _Signals():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        number = signal.SIGINT
    except common.Terminated:
        number = signal.SIGTERM
    _drop_output()  # of an interrupted command; a reader that stands still must not hold it up
    return 128 + number


def _run(words: list[str]) -> int:
    from mpqueue.cli import common

    try:
        parser = build_parser([word for word in words[:1] if word in VERBS])
        args = parser.parse_args(words)
        code = int(args.run(args))
        sys.stdout.flush()
    except SystemExit as end:  # argparse's own, which may have printed
        code = end.code if isinstance(end.code, int) else 2
        if code == 0:
            code = _flushed()
        raise SystemExit(code) from None
    except BrokenPipeError:
        # The reader of stdout went away. What was flushed before may or may not have been read.
        return 128 + signal.SIGPIPE
    except Exception as error:
        code = common.exit_code(error)
        if code < 0:
            raise
        common.say(common.reason(error))
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            _drop_output()
    return code


def _flushed() -> int:
    """The exit code of what has nothing more to do than to write its output."""
    from mpqueue.cli import common

    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:
        common.say(common.reason(error))
        return common.exit_code(error)
    return 0


def _drop_output() -> None:
    """What stdout still holds goes nowhere: Python would fail to write it at exit, with noise."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


ECHO_S = 0.1


class _Signals:
    """While a verb runs: SIGINT and SIGTERM raise once, the next one does not wait for the end.

    `timeout` signals its child and then the group: what comes within `ECHO_S` is the same signal.
    """

    def __enter__(self) -> None:
        self._hook = sys.unraisablehook
        self._previous = {
            number: signal.getsignal(number)
            for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        sys.unraisablehook = self._unraisable
        for number in self._previous:
            signal.signal(number, self._raise)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _raise(self, number: int, frame: FrameType | None) -> None:
        from mpqueue.cli import common

        self._raised = time.monotonic()
        for other in self._previous:
            signal.signal(other, self._again)
        raise KeyboardInterrupt if number == signal.SIGINT else common.Terminated

    def _again(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._raised > ECHO_S:
            _leave(number)

    def _unraisable(self, error: sys.UnraisableHookArgs) -> None:
        """An interrupt that struck in a destructor was printed and forgotten there."""
        from mpqueue.cli import common

        if issubclass(error.exc_type, KeyboardInterrupt):
            _leave(signal.SIGINT)
        if issubclass(error.exc_type, common.Terminated):
            _leave(signal.SIGTERM)
        self._hook(error)


def _leave(number: int) -> None:
    """At once, but no process that the verb started goes on."""
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        child.kill()
    os._exit(128 + number)


def _verb(name: str) -> Verb:
    return cast(Verb, importlib.import_module(f"mpqueue.cli.{name}"))


class _Version(argparse.Action):
    """Prints the version; read from the package only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import mpqueue

        print(f"mpqueue {mpqueue.__version__}")
        parser.exit()


class _Completion(argparse.Action):
    """Prints what a shell wants to know of the whole tree."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings,
            dest,
            metavar="SHELL",
            help="print a completion script for bash, zsh or fish, and exit",
        )

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        from mpqueue.cli import completion, tree

        if shell not in completion.SHELLS:
            parser.error(f"--completion: {shell!r} is none of {', '.join(completion.SHELLS)}")
        verbs = list(tree.verbs(build_parser()))
        print("\n".join(completion.SHELLS[shell](verbs)))
        parser.exit()


class _Manual(argparse.Action):
    """Prints the manual page, in the macros that man reads."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings, dest, nargs=0, help="print the manual page, for man, and exit"
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import mpqueue
        from mpqueue.cli import manual, tree

        verbs = list(tree.verbs(build_parser()))
        print("\n".join(manual.page(parser.description or "", verbs, str(mpqueue.__version__))))
        parser.exit()
