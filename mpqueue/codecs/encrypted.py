"""Encryption as a codec around a codec: AES-256-GCM by the library cryptography.

A stored item, all integers little endian:

    0   u32   form: 1
    4   u32   key id
    8   16    salt of the session
    24  12    nonce
    36  n     ciphertext, as long as the plaintext
        16    tag

E1  The key of an item is HKDF-SHA256 of the user's key, with uuid and salt as its salt. A session
    is `SESSION` items of one codec object in one process: its salt is 128 random bits. So two
    queues, two processes, a forked child and a queue that was copied, restored or cut off from
    power never share a key, and nothing that would have to last decides it.
E2  A nonce is 96 random bits. The chance that one of a session's nonces repeats is below 2^-57;
    over 2^48 items of a queue it is below 2^-28. There is no counter that could be set back.
E3  The tag covers the 36 bytes ahead of the ciphertext, the queue's uuid and the codec's name. It
    cannot cover the seq, which an item has not got when it is encrypted: who can write the files
    may drop, repeat or reorder items, and make frames' hashes fit, but not make or change one.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpqueue.codecs.base import Base, library
from mpqueue.codecs.keys import KEY_BYTES, KeyRing, read_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal, TypedDict, Unpack, overload

    from typing_extensions import Buffer

    from mpqueue.codecs import Codec

    class _Keys(TypedDict, total=False):
        keys: Mapping[int, bytes] | None
        current: int | None
        key_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None


__all__ = ["SUFFIX", "Aes"]

T = TypeVar("T")

SUFFIX = "+aes"
FORM = 1
SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
HEAD = struct.Struct(f"<II{SALT_BYTES}s{NONCE_BYTES}s")
SESSION = 1 << 20
_KEPT = 256


class Aes(Base, Generic[T]):
    """What another codec makes, encrypted with AES-256-GCM: 52 bytes more an item.

    inner: the codec within, or its name; compression belongs within, as `Aes(Zstd("json"))`.
    keys: 32 random bytes by key id, 0 to 2^32 - 1. current: the id that new items are encrypted
    with. key_file: in place of both, a file of lines "ID HEX", whose last one is current.

    Keys do not pickle, and do not show in repr or messages: a queue that travels to processes that
    are spawned takes key_file, of which the absolute path travels; it is read again there.

    Raises ValueError, TypeError, OSError for the file, ImportError that names the extra.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Aes[bytes], inner: Literal["bytes"] = ..., **keys: Unpack[_Keys]
        ) -> None: ...
        @overload
        def __init__(self, inner: Codec[T], **keys: Unpack[_Keys]) -> None: ...
        @overload
        def __init__(self: Aes[Any], inner: str, **keys: Unpack[_Keys]) -> None: ...

    def __init__(
        self,
        inner: Codec[T] | str = "bytes",
        *,
        keys: Mapping[int, bytes] | None = None,
        current: int | None = None,
        key_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    ) -> None:
        library("cryptography.hazmat.primitives.ciphers.aead", "crypto")
        if isinstance(inner, str):
            from mpqueue.codecs.registry import lookup

            inner = lookup(inner)
        if (keys is None) == (key_file is None) or (key_file is not None and current is not None):
            raise TypeError("Aes takes keys= (and current=), or key_file= alone")
        self.name = f"{inner.name}{SUFFIX}"
        self.inner = inner
        self.key_file = None if key_file is None else os.path.abspath(os.fsdecode(key_file))
        self.ring = KeyRing(keys, current) if keys is not None else read_keys(self.key_file or "")

    def bind(self, uuid: str) -> Codec[T]:
        """The codec for the items of one queue: `q.uuid`, of an inspection `view.meta.uuid`.

        A queue that is given an `Aes` does it itself; `inspect()` hands out stored bytes.
        """
        return _Bound(self, uuid)

    def encode(self, value: T, /) -> Buffer:
        """TypeError: there is no key before `bind`."""
        raise TypeError("Aes encrypts for one queue: give it to Queue(codec=...), or use bind()")

    def decode(self, body: bytes, /) -> T:
        """TypeError, as encode."""
        raise TypeError("Aes decrypts for one queue: give it to Queue(codec=...), or use bind()")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.key_file is None:
            raise TypeError(
                "a codec with keys= does not pickle, so that keys do not travel: give it key_file="
            )
        return _from_file, (type(self), self.inner, self.key_file)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aes) and (self.inner, self.ring) == (other.inner, other.ring)

    __hash__ = Base.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r}, {self.ring!r})"


def _from_file(kind: type[Aes[Any]], inner: Codec[Any], key_file: str) -> Aes[Any]:
    return kind(inner, key_file=key_file)


class _Session:
    """A key for some items (E1), and what stands ahead of their nonces."""

    def __init__(self, pid: int, head: bytes, cipher: Any) -> None:
        self.pid = pid
        self.head = head
        self.cipher = cipher
        self.left = SESSION  # threads that count at once may pass it by a few: E2 has room


class _Bound(Generic[T]):
    """An Aes for one queue. Its methods may be called from any thread, and at the same time."""

    def __init__(self, aes: Aes[T], uuid: str) -> None:
        aead = library("cryptography.hazmat.primitives.ciphers.aead", "crypto")
        self.name = aes.name
        self._inner = aes.inner
        self._ring = aes.ring
        self._uuid = bytes.fromhex(uuid)
        self._place = self._uuid + aes.name.encode()
        self._cipher_of = aead.AESGCM
        self._invalid = library("cryptography.exceptions", "crypto").InvalidTag
        self._session: _Session | None = None
        self._ciphers: dict[tuple[int, bytes], Any] = {}

    def encode(self, value: T, /) -> bytes:
        """Encodes by the codec within, then encrypts with the current key."""
        plain = self._inner.encode(value)
        if type(plain) is not bytes:
            plain = memoryview(plain).tobytes()
        session = self._session
        if session is None or session.left <= 0 or session.pid != os.getpid():
            session = self._session = self._begin()
        session.left -= 1
        nonce = os.urandom(NONCE_BYTES)
        head = session.head + nonce
        sealed: bytes = session.cipher.encrypt(nonce, plain, head + self._place)
        return head + sealed

    def decode(self, body: bytes, /) -> T:
        """Decrypts, then decodes by the codec within. ValueError, KeyMismatch."""
        if len(body) < HEAD.size + TAG_BYTES:
            raise ValueError(f"{len(body)} bytes are no encrypted item")
        form, id, salt, nonce = HEAD.unpack_from(body)
        if form != FORM:
            raise ValueError(f"it is no encrypted item of form {FORM}")
        head = bytes(body[: HEAD.size])
        cipher = self._ciphers.get((id, salt))
        if cipher is None:
            cipher = self._cipher(id, salt)
            if len(self._ciphers) >= _KEPT:
                self._ciphers = {}
            self._ciphers[id, salt] = cipher
        try:
            plain = cipher.decrypt(nonce, memoryview(body)[HEAD.size :], head + self._place)
        except self._invalid:
            raise ValueError(
                f"it was not encrypted with this key {id} for this queue, or changed since"
            ) from None
        return self._inner.decode(plain)

    def _begin(self) -> _Session:
        salt = os.urandom(SALT_BYTES)
        id = self._ring.current
        head = HEAD.pack(FORM, id, salt, b"")[:-NONCE_BYTES]
        return _Session(os.getpid(), head, self._cipher(id, salt))

    def _cipher(self, id: int, salt: bytes) -> Any:
        key = self._ring.derive(id, self._uuid + salt, b"mpqueue aes-256-gcm 1", KEY_BYTES)
        return self._cipher_of(key)
