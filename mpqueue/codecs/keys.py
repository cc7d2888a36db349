"""Keys: which ones an opener holds, what is derived from them, and whether they are a queue's own.

K1  A key itself is used for nothing but HKDF-SHA256. What is derived is bound to the uuid of a
    queue: one key given to two queues makes two sets of keys that have nothing in common.
K2  A queue records ids and check values of the keys it was used with, the newest 16 of them, never
    a key. A check value is 16 bytes of HKDF output: it tells another key, and says nothing of it.
K3  Who opens a queue has to hold the newest key that it records, and no other key under an id that
    it records. So a wrong or missing key is noticed before anything is joined or written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from mpqueue.codecs.base import library
from mpqueue.exceptions import KeyMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpqueue._native import Queue

    Look = tuple[str, str, tuple[tuple[int, bytes], ...]]
    """uuid, codec, and (id, check value) of the recorded keys, oldest first."""

__all__ = ["KeyRing", "admit", "read_keys"]

KEY_BYTES = 32
ID_MAX = (1 << 32) - 1
CHECK_BYTES = 16


class _Unpickled:
    def __reduce__(self) -> NoReturn:
        raise TypeError("keys do not pickle: give the codec key_file=, whose path does")


class _Secret(_Unpickled, bytes):
    """Bytes that do not show themselves."""

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__


class KeyRing(_Unpickled):
    """Keys by id, and the id of the one that new items are encrypted with."""

    def __init__(self, keys: Mapping[int, bytes], current: int | None = None) -> None:
        """current: None where there is one key. ValueError and TypeError name no key."""
        self._hashes = library("cryptography.hazmat.primitives.hashes", "crypto")
        self._hkdf = library("cryptography.hazmat.primitives.kdf.hkdf", "crypto").HKDF
        if not keys:
            raise ValueError("there is no key: give one at least")
        for id, key in keys.items():
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id <= ID_MAX:
                raise ValueError(f"key id {id!r}: it is a whole number from 0 to {ID_MAX}")
            if not isinstance(key, bytes):
                raise TypeError(f"key {id} is no bytes object but {type(key).__name__}")
            if len(key) != KEY_BYTES:
                raise ValueError(
                    f"key {id} has {len(key)} bytes: it takes {KEY_BYTES} random ones, as "
                    f"secrets.token_bytes({KEY_BYTES}) makes them, and no password"
                )
        if current is None and len(keys) > 1:
            raise ValueError(f"which of the keys {self._named(keys)} is current? Give current=")
        self.current = next(iter(keys)) if current is None else current
        if self.current not in keys:
            raise ValueError(f"current is {current!r}: the keys are {self._named(keys)}")
        self._keys = {id: _Secret(key) for id, key in keys.items()}

    @staticmethod
    def _named(keys: Mapping[int, object]) -> str:
        return ", ".join(map(str, sorted(keys)))

    def __repr__(self) -> str:
        return f"<keys {self._named(self._keys)}; current {self.current}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyRing):
            return NotImplemented
        return self.current == other.current and self._keys == other._keys

    __hash__ = None  # type: ignore[assignment]

    def derive(self, id: int, salt: bytes, purpose: bytes, length: int) -> _Secret:
        """Bytes for one purpose. KeyMismatch when there is no such key."""
        key = self._keys.get(id)
        if key is None:
            raise KeyMismatch(
                f"it was encrypted with key {id}: the keys at hand are {self._named(self._keys)}"
            )
        kdf = self._hkdf(algorithm=self._hashes.SHA256(), length=length, salt=salt, info=purpose)
        return _Secret(kdf.derive(key))

    def check(self, id: int, uuid: str) -> bytes:
        """What a queue records of a key (K2)."""
        purpose = b"mpqueue key check %d" % id
        return bytes(self.derive(id, bytes.fromhex(uuid), purpose, CHECK_BYTES))

    def judge(self, look: Look, path: str) -> bool:
        """Whether the current key is recorded there; raises KeyMismatch by K3."""
        from hmac import compare_digest

        uuid, _, recorded = look
        for id, check in recorded:
            if id in self._keys and not compare_digest(self.check(id, uuid), check):
                raise KeyMismatch(
                    f"{path}: the key given as {id} is not the key {id} that this queue was used "
                    "with; nothing was touched. Give the right one, or a new key a new id"
                )
        if recorded and recorded[-1][0] not in self._keys:
            raise KeyMismatch(
                f"{path}: its newest key is {recorded[-1][0]}, and the keys given are "
                f"{self._named(self._keys)}; nothing was touched. Add that key"
            )
        return any(id == self.current for id, _ in recorded)


def admit(queue: Queue[object], ring: KeyRing) -> None:
    """Judges an open queue's keys, and records the current one, durably, where it is new.

    Two processes may do so at once: who comes second judges again by what the first one recorded.
    """
    while True:
        look = queue._keys()
        if ring.judge(look, queue.path):
            return
        newest = look[2][-1] if look[2] else None
        if queue._add_key(newest, ring.current, ring.check(ring.current, look[0])):
            return


def read_keys(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> KeyRing:
    """The keys of a key file: lines of an id, a space, and 64 hex digits; the last one is current.

    Empty lines and lines that begin with # are passed over. Raises OSError, and ValueError that
    names the line and never shows it.
    """
    import re

    name = os.fsdecode(path)
    keys: dict[int, bytes] = {}
    with open(path, encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = re.fullmatch(r"(\d{1,10})\s+([0-9a-fA-F]{64})", text)
            if match is None:
                raise ValueError(
                    f"{name}: line {number} is no id and 64 hex digits, such as "
                    "`python -c 'import secrets; print(1, secrets.token_hex(32))'` prints"
                )
            id = int(match[1])
            if id in keys:
                raise ValueError(f"{name}: line {number} has key {id} for the second time")
            keys[id] = bytes.fromhex(match[2])
    if not keys:
        raise ValueError(f"{name}: there is no key in this file")
    return KeyRing(keys, list(keys)[-1])
