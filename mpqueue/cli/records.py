"""Items as bytes on a pipe: lines, NUL-separated, JSON lines, length-prefixed frames."""

from __future__ import annotations

import argparse
import base64
import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from mpqueue.cli.common import UsageError, naming

CHUNK = 1 << 20
FRAME_MAX = 1 << 31
HEADERS_MAX = 65528
KEY_MAX = 1024


class Entry(NamedTuple):
    """One item to put."""

    body: bytes
    headers: Mapping[str, str] | None
    key: bytes | None = None


def add_format(parser: argparse.ArgumentParser, default: str, formats: tuple[str, ...]) -> None:
    """The mutually exclusive format flags; `args.format` gets the chosen one."""
    group = parser.add_mutually_exclusive_group()
    texts = {
        "lines": "one item a line",
        "null": "items end with a NUL byte",
        "jsonl": "one JSON object a line: body or body_base64, headers",
    }
    for name, text in texts.items():
        if name in formats:
            mark = " (default)" if name == default else ""
            group.add_argument(
                f"--{name}", dest="format", action="store_const", const=name, help=text + mark
            )
    if "frame" in formats:
        group.add_argument(
            "--frame",
            dest="format",
            choices=("u32",),
            help="a little-endian u32 length ahead of each item",
        )
    parser.set_defaults(format=default)


def read_batches(
    descriptor: int, form: str, most: int = FRAME_MAX, key_from: str | None = None
) -> Iterator[list[Entry]]:
    """Entries as they arrive: all that one read brought, so that a lone line never waits.

    `most`: bytes of the largest item that can be put; input without end is not kept in memory.
    `key_from`: what ends the key at the beginning of a line; of JSON lines the field that is it.
    Raises UsageError for input that is not in the format, OSError.
    """
    if form == "u32":
        yield from _read_frames(descriptor, most)
        return
    separator = b"\0" if form == "null" else b"\n"
    number = 0
    # A byte of a body takes up to 6 bytes of JSON; headers come on top.
    longest = most if form != "jsonl" else 6 * most + 16 * HEADERS_MAX
    for parts in _read_split(descriptor, separator, longest, most):
        if form != "jsonl" and key_from is None:
            yield [Entry(part, None) for part in parts]
            continue
        entries = []
        for part in parts:
            number += 1
            try:
                if form != "jsonl":
                    assert key_from is not None
                    entries.append(Entry(part, None, _prefix(part, key_from, number)))
                elif part.strip():
                    entries.append(_from_json(part, number, key_from))
            except UsageError:
                yield entries  # what was good before it is put all the same
                raise
        yield entries


def _read(descriptor: int) -> bytes:
    with naming("stdin"):
        return os.read(descriptor, CHUNK)


def _read_split(
    descriptor: int, separator: bytes, longest: int, most: int
) -> Iterator[list[bytes]]:
    pending: list[bytes] = []
    size = 0
    while chunk := _read(descriptor):
        first, *parts = chunk.split(separator)
        pending.append(first)
        size += len(first)
        if size > longest:
            raise UsageError(
                f"the input has {longest} bytes without the end of an item, more than max_item "
                f"({most}) allows: keep items apart by --null or --frame u32, put a file as one "
                "item by --file, or raise max_item by `mpqueue set`"
            )
        if not parts:
            continue
        complete = [b"".join(pending), *parts[:-1]]
        pending = [parts[-1]]
        size = len(parts[-1])
        yield complete
    rest = b"".join(pending)
    if rest:
        yield [rest]


def _read_frames(descriptor: int, most: int) -> Iterator[list[Entry]]:
    pending = bytearray()
    while chunk := _read(descriptor):
        pending += chunk
        entries: list[Entry] = []
        offset = 0
        while len(pending) - offset >= 4:
            (length,) = struct.unpack_from("<I", pending, offset)
            if length > most:
                yield entries
                raise UsageError(
                    f"a frame claims {length} bytes, more than max_item ({most}): is the input "
                    "really u32 frames?"
                )
            if len(pending) - offset - 4 < length:
                break
            entries.append(Entry(bytes(pending[offset + 4 : offset + 4 + length]), None))
            offset += 4 + length
        del pending[:offset]
        if entries:
            yield entries
    if pending:
        raise UsageError("the input ends inside a frame; the items before it were put")


def _prefix(part: bytes, separator: str, number: int) -> bytes:
    key, found, _ = part.partition(os.fsencode(separator))
    if not found:
        raise _refused(number, f"has no {separator!r} behind a key")
    return _key(key, number)


def _field(value: Mapping[str, Any], path: str, number: int) -> bytes:
    found: Any = value
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str):
        raise _refused(number, f"has no field {path!r} with a text or a whole number as its key")
    try:
        return _key(found.encode(), number)
    except UnicodeEncodeError:
        raise _refused(number, f"has a field {path!r} that is no valid text") from None


def _key(key: bytes, number: int) -> bytes:
    if not 1 <= len(key) <= KEY_MAX:
        raise _refused(number, f"has a key of {len(key)} bytes: 1 to {KEY_MAX:,} are possible")
    return key


def _from_json(line: bytes, number: int, key_from: str | None) -> Entry:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _refused(number, "is no JSON object")
    headers = value.get("headers")
    problem = headers_problem(headers) if headers is not None else ""
    if problem:
        raise _refused(number, f"cannot be put: {problem}")
    key = None if key_from is None else _field(value, key_from, number)
    return Entry(_body(value, number), headers or None, key)


def _body(value: Mapping[str, Any], number: int) -> bytes:
    given = [name for name in ("body", "body_base64") if name in value]
    if len(given) != 1:
        raise _refused(number, "needs one of body and body_base64")
    text = value[given[0]]
    if not isinstance(text, str):
        raise _refused(number, f"has a {given[0]} that is no string")
    try:
        return text.encode() if given == ["body"] else base64.b64decode(text, validate=True)
    except UnicodeEncodeError:
        raise _refused(number, "has a body that is no valid text") from None
    except ValueError:
        raise _refused(number, "has a body_base64 that is no base64") from None


def _refused(number: int, why: str) -> UsageError:
    return UsageError(f"line {number} {why}; the lines before it were put")


def headers_problem(headers: Any) -> str:
    """Why these cannot be the headers of an item; empty when they can."""
    if not isinstance(headers, dict):
        return "headers are no object of strings"
    size = 4
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            return f"header {key!r} is no string"
        try:
            size += 4 + len(key.encode()) + len(value.encode())
        except UnicodeEncodeError:
            return f"header {key!r} is no valid text"
    return f"headers take more than {HEADERS_MAX:,} bytes" if size > HEADERS_MAX else ""


def as_json(item: Any, body: bytes) -> dict[str, Any]:
    """An item or record as JSON values; a body that is not UTF-8 becomes body_base64."""
    value: dict[str, Any] = {
        "seq": item.seq,
        "id": item.id,
        "enqueued_at": item.enqueued_at,
        "attempts": item.attempts,
        "headers": dict(item.headers),
    }
    try:
        value["body"] = body.decode()
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(body).decode()
    return value


def write_item(out: BinaryIO, item: Any, body: bytes, form: str) -> None:
    """Writes one item with the body given in a format; does not flush."""
    if form == "jsonl":
        text = json.dumps(as_json(item, body), ensure_ascii=False)
        out.write(text.encode("utf-8", "surrogatepass") + b"\n")
        return
    if form == "u32":
        out.write(struct.pack("<I", len(body)))
    out.write(body)
    if form == "lines":
        out.write(b"\n")
    elif form == "null":
        out.write(b"\0")
