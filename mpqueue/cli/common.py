"""What the verbs share: exit codes, units, the PATH argument, options, talk on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mpqueue
    from mpqueue.codecs import Codec

OK = 0
EMPTY = 1
USAGE = 2
SEALED = 3
BUSY = 4
DAMAGE = 5
FULL = 6
REFUSED = 7
UNDECODABLE = 8
DEAD = 9
IO_ERROR = 74
TIMEOUT = 124

EXIT_CODES = (
    ("0", "ok"),
    ("1", "empty, not found"),
    ("2", "usage"),
    ("3", "sealed"),
    ("4", "another consumer is attached, or others have the queue open"),
    ("5", "damage found"),
    ("6", "full, also when the room did not come within `put --timeout`"),
    ("7", "refused to open: no queue, version, options, key"),
    ("8", "an item cannot be decoded or decrypted"),
    ("9", "`exec` gave up an item, or more: they are dead letters"),
    ("74", "I/O error, poisoned; also of stdin and stdout"),
    ("124", "time-out"),
    (
        "130, 143",
        "SIGINT, SIGTERM: at any time, without a traceback. A second one does not wait",
    ),
    ("141", "the reader of stdout went away"),
)
"""What each exit code means, in the words of the manual."""

DURATION_MAX = 1_000_000_000
SIZE_MAX = COUNT_MAX = (1 << 63) - 1
SEQ_MAX = (1 << 64) - 1

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SECONDS["d"] = 86400.0
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Terminated(BaseException):
    """SIGTERM arrived; raised where the program stands, so that every block is left in order."""


class UsageError(Exception):
    """The command line asks for something that cannot be."""


class WorkerFailed(Exception):
    """A process that the command started ended by itself with an error."""


def exit_code(error: BaseException) -> int:
    """Exit code that an exception stands for; -1 for a bug, which deserves its traceback."""
    from mpqueue import exceptions

    table: tuple[tuple[type[BaseException], int], ...] = (
        (UsageError, USAGE),
        (WorkerFailed, IO_ERROR),
        (exceptions.Empty, EMPTY),
        (exceptions.Sealed, SEALED),
        (exceptions.ConsumerBusy, BUSY),
        (exceptions.QueueInUse, BUSY),
        (exceptions.Corrupt, DAMAGE),
        (exceptions.Full, FULL),
        (exceptions.TooLarge, USAGE),
        (exceptions.LockTimeout, TIMEOUT),
        (exceptions.NotAQueue, REFUSED),
        (exceptions.FormatError, REFUSED),
        (exceptions.OptionsMismatch, REFUSED),
        (exceptions.KeyMismatch, REFUSED),
        (exceptions.CodecError, UNDECODABLE),
        (exceptions.UnsupportedFilesystem, REFUSED),
        (exceptions.MpqueueError, IO_ERROR),
        (OSError, IO_ERROR),
        (MemoryError, IO_ERROR),
    )
    return next((code for kind, code in table if isinstance(error, kind)), -1)


def shown(text: str) -> str:
    """Text that a terminal shows and does not obey: paths may hold any byte but two."""
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no text, as os.fsdecode() keeps it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def say(text: str) -> None:
    """One line of talk on stderr; silent when nobody listens there."""
    with contextlib.suppress(OSError):
        print(f"mpqueue: {shown(text)}", file=sys.stderr, flush=True)


def reason(error: BaseException) -> str:
    """What to say of an error. One of the system that names no file is of stdout: others do."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        bare = os.strerror(error.errno)
        if error.strerror == bare:  # those of the core say more
            return f"stdout: {bare}"
    return text


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors of the system in here are those of `name`, whatever file they were met at."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error


def replace_file(path: str, text: str) -> None:
    """Writes beside the file and renames: a reader has the old text or the new, never a part."""
    if os.path.exists(path) and not os.path.isfile(path):  # root would replace even /dev/null
        raise UsageError(f"{path} is no regular file, which alone can be replaced")
    directory, name = os.path.split(path)
    # Its name does not end in .prom, so that node_exporter does not take it for a second file.
    with naming(path):
        descriptor, beside = tempfile.mkstemp(
            prefix=f".{name}.", suffix=".tmp", dir=directory or "."
        )
    try:
        with naming(path):
            with open(descriptor, "w", encoding="utf-8", errors="strict") as file:
                os.fchmod(descriptor, 0o644)  # read by another user
                file.write(text)
            os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


# ---- units --------------------------------------------------------------------------------------


def duration(text: str) -> float:
    """Seconds from "50ms", "10s", "5m", "1h" or a plain number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s|m|h|d|)", text.strip(), re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 50ms, 10s, 5m or 1h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > DURATION_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {DURATION_MAX} seconds")
    return seconds


def size(text: str) -> int:
    """Bytes from "16M", "64K", "1G" (powers of 1,024) or a plain number."""
    flags = re.IGNORECASE | re.ASCII
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 4096, 64K, 16M or 1G")
    value = float(match[1]) * _BYTES[match[2].upper()]
    if value > SIZE_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {SIZE_MAX} bytes")
    return int(value)


def number(least: int, most: int) -> Callable[[str], int]:
    """A converter of whole numbers between two bounds, both included."""

    def convert(text: str) -> int:
        digits = text.strip()
        if re.fullmatch(r"-?\d{1,20}", digits, re.ASCII) and least <= int(digits) <= most:
            return int(digits)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")

    return convert


whole = number(1, COUNT_MAX)
seq = number(0, SEQ_MAX)


def durability(text: str) -> tuple[str, float | None]:
    """Policy and, for "interval:50ms", its interval in seconds."""
    name, _, interval = text.partition(":")
    if name not in ("sync", "group", "interval", "none") or (interval and name != "interval"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no durability; use sync, group, interval, interval:50ms or none"
        )
    return name, duration(interval) if interval else None


def _mode(text: str) -> int:
    if re.fullmatch(r"0?[0-7]{3}", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no octal mode like 0660")
    return int(text, 8)


def _codec(text: str) -> str:
    from mpqueue.codecs.registry import name_of

    try:
        return name_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty path is no directory of a queue")
    return text


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def optional(text: str) -> Any:
        return None if text == "none" else convert(text)

    return optional


OPTIONS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "segment_size": (size, "bytes of a segment, a multiple of 4096 from 64K to 1G"),
    "max_segments": (whole, "how many segments may exist, 4 to 8192"),
    "keep_segments": (number(0, COUNT_MAX), "freed segments kept for reuse, 0 to 64"),
    "capacity": (_or_none(whole), "how many items the queue may hold, 1 or more, or none"),
    "max_bytes": (_or_none(size), "how many bytes of frames it may hold, 64 or more, or none"),
    "max_item": (size, "bytes of the largest item, 1 to 2G"),
    "durability": (durability, "sync, group, interval[:50ms] or none"),
    "interval_items": (whole, "items that may be unsynced under interval, 1 to 4294967295"),
    "interval": (duration, "time that items may be unsynced under interval, above 0"),
    "ack_window": (
        whole,
        "seqs above the floor in which acks are remembered, a multiple of 64 from 64 to 4194304",
    ),
    "ack_linger": (duration, "time after which acks are durable"),
    "max_members": (whole, "entries of the member table, 1 to 65536"),
    "key_window": (
        _or_none(whole),
        "how many items put with a key are remembered, 1 to 4194304, or none",
    ),
    "retain": (duration, "how long acked segments are kept"),
    "lease_timeout": (
        _or_none(duration),
        "time after which an item in hand is ready again, above 0, or none",
    ),
    "max_attempts": (
        _or_none(whole),
        "hand-outs after which an item is a dead letter, 1 to 65535, or none",
    ),
    "dead_retain": (
        _or_none(duration),
        "age at which a sweep drops dead letters, above 0, or none",
    ),
    "codec": (_codec, "name of what Python makes items with: json, msgpack, ..."),
    "mode": (_mode, "file mode, octal: 0600, 0660 or 0666"),
}
"""Options by name: how their text is read, and what they mean."""

FIXED = ("segment_size", "ack_window", "max_members", "key_window", "codec", "mode")
"""Those that `set` cannot change."""


def option_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for Queue or set(): durability's interval becomes its own option."""
    values = {}
    for name, value in given.items():
        if name == "durability":
            values["durability"], interval = value
            if interval is not None:
                values["interval"] = interval
        else:
            values[name] = value
    return values


def environment_options() -> dict[str, Any]:
    """Options from MPQUEUE_DURABILITY, MPQUEUE_SEGMENT_SIZE and so on."""
    given = {}
    for name, (convert, _) in OPTIONS.items():
        text = os.environ.get("MPQUEUE_" + name.upper())
        if text:
            try:
                given[name] = convert(text)
            except (argparse.ArgumentTypeError, ValueError) as error:
                raise UsageError(f"MPQUEUE_{name.upper()}: {error}") from None
    return given


# ---- the queue ----------------------------------------------------------------------------------


def add_path(parser: argparse.ArgumentParser) -> None:
    """The PATH argument; MPQUEUE_PATH stands in for it."""
    default = os.environ.get("MPQUEUE_PATH")
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?" if default else None,
        default=default,
        type=_path,
        help="directory of the queue (default: MPQUEUE_PATH)",
    )


def add_paths(parser: argparse.ArgumentParser) -> None:
    """One PATH or more, as `paths`; MPQUEUE_PATH stands in for the one."""
    default = os.environ.get("MPQUEUE_PATH")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*" if default else "+",
        default=[default] if default else None,
        type=_path,
        help="directories of queues (default: MPQUEUE_PATH)",
    )


def open_queue(path: str) -> mpqueue.Queue:
    """Opens an existing queue, whose items are bytes here whatever its codec.

    Raises NotAQueue and everything that opening raises.
    """
    import mpqueue

    return mpqueue.Queue(path, create=False, raw=True)


def make_queue(
    path: str, given: Mapping[str, Any], codec: Codec[Any] | None = None
) -> mpqueue.Queue[Any]:
    """Makes a queue, or opens one that agrees; `given` as `option_values` takes it.

    codec: for one that is encrypted; without it items are bytes, whatever the queue's codec.

    Raises UsageError for an option that cannot be, and everything that opening raises.
    """
    import mpqueue

    try:
        values = option_values(given)
        if codec is not None:
            return mpqueue.Queue(path, **{**values, "codec": codec})
        return mpqueue.Queue(path, raw=True, **values)
    except mpqueue.MpqueueError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


# ---- output -------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, default=str))


def colour(text: str, code: str) -> str:
    """`text` in an ANSI colour where stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def table(rows: list[tuple[str, Any]]) -> None:
    """Names and values in two columns on stdout."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def human_bytes(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def human_time(seconds: float) -> str:
    """A duration for people."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
