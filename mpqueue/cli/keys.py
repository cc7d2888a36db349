"""--key-file: the verbs that move items read and write them in the form within the encryption."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from mpqueue.cli import common
from mpqueue.exceptions import CodecError, KeyMismatch

if TYPE_CHECKING:
    import mpqueue
    from mpqueue.codecs import Aes, Codec
    from mpqueue.reader import Inspection, Record

_AES = "+aes"


def add_key_file(parser: argparse.ArgumentParser) -> None:
    """The option; MPQUEUE_KEY_FILE stands in for it."""
    parser.add_argument(
        "--key-file",
        metavar="F",
        default=os.environ.get("MPQUEUE_KEY_FILE") or None,
        help="keys of an encrypted queue: lines of ID HEX, the last is current "
        "(default: MPQUEUE_KEY_FILE)",
    )


def refusal(path: str, name: str) -> KeyMismatch:
    """Of a queue whose items are not moved without their key."""
    return KeyMismatch(
        f"{path}: its items are encrypted (codec {name}), and no key was given: put, get, exec, "
        "peek and export take --key-file, or MPQUEUE_KEY_FILE"
    )


def is_encrypted(name: str) -> bool:
    """Whether items of this codec are."""
    return name.endswith(_AES)


def encrypted_name(name: str) -> str:
    """The name of a codec with encryption as its outermost layer."""
    return name if is_encrypted(name) else name + _AES


def codec(name: str, key_file: str) -> Aes[Any]:
    """Encrypts and decrypts for `name`, and leaves the form within as it is.

    Raises UsageError for a file that holds no keys, OSError, ImportError.
    """
    from mpqueue.codecs import Aes, Bytes

    within = Bytes()
    within.name = name.removesuffix(_AES)
    try:
        return Aes(within, key_file=key_file)
    except ImportError as error:
        raise common.UsageError(str(error)) from None
    except (TypeError, ValueError) as error:
        raise common.UsageError(str(error)) from None


def recorded(path: str) -> str:
    """The name of the codec of the queue at `path`. Raises what opening raises."""
    from mpqueue import _native

    return _native.look(os.path.abspath(os.fsencode(path)))[1] or "bytes"


def open_queue(path: str, key_file: str | None) -> mpqueue.Queue[bytes]:
    """Opens an existing queue; items are in the form within the encryption, if it has one.

    Raises KeyMismatch, and what opening raises.
    """
    import mpqueue

    name = recorded(path)
    if not is_encrypted(name):
        return common.open_queue(path)
    if key_file is None:
        raise refusal(path, name)
    return mpqueue.Queue(path, create=False, codec=codec(name, key_file))


def reader(view: Inspection, key_file: str | None) -> Codec[bytes] | None:
    """What decrypts the records of a view; None where they are taken as they are stored.

    Raises KeyMismatch when the keys are not the queue's.
    """
    name = view.meta.options["codec"]
    if not is_encrypted(name):
        return None
    if key_file is None:
        common.say(f"{view.path}: items are encrypted and shown as stored; --key-file decrypts")
        return None
    aes = codec(name, key_file)
    aes.ring.judge((view.meta.uuid, name, view.meta.keys), os.fspath(view.path))
    return aes.bind(view.meta.uuid)


def decrypted(record: Record, codec: Codec[bytes] | None) -> bytes:
    """The body of a record, as it is stored where there is no codec. Raises CodecError."""
    if codec is None:
        return record.body
    try:
        return codec.decode(record.body)
    except (ValueError, KeyMismatch) as error:
        raise CodecError(f"item {record.id} cannot be decrypted: {error}") from None
