"""The native half. Use `mpqueue.Queue` and its consumers; names without underscore are theirs."""

import sys
from collections.abc import Callable, Iterable, Mapping
from types import GenericAlias, TracebackType
from typing import Any, Final, Generic, Literal, NoReturn, Self, final, overload

from typing_extensions import Buffer, TypeVar, disjoint_base

from mpqueue.exceptions import Corrupt

_T = TypeVar("_T", default=bytes)
_T_co = TypeVar("_T_co", default=bytes, covariant=True)

DEBUG: Final[bool]
EVENT_LOSS: Final[int]
EVENT_TAKEOVER: Final[int]
EVENT_WEAK: Final[int]
EVENT_LOCK_WAIT: Final[int]
EVENT_RECOVERED: Final[int]
EVENT_GATE: Final[int]
EVENT_DEAD: Final[int]
ROLE_CONSUMER: Final[int]

def destroy(path: bytes, /) -> str: ...
def repair(
    path: bytes, dry_run: bool = False, /
) -> tuple[int, int, int, int, int, int, bool, bool]: ...
def look(path: bytes, /) -> tuple[str, str, tuple[tuple[int, bytes], ...]]: ...
def xxh64(data: Buffer, seed: int = 0, /) -> int: ...

@disjoint_base
class Queue(Generic[_T]):
    _encode: Callable[[_T], Buffer] | None
    _decode: Callable[[Item[_T]], _T] | None
    def __init__(
        self,
        path: bytes,
        create: bool = True,
        options: dict[str, object] = ...,
        allow_filesystem: str | None = None,
    ) -> None: ...
    @property
    def uuid(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def gate_name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @overload
    def put(
        self: Queue[bytes],
        item: Buffer,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_full: Literal["raise"] = "raise",
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int: ...
    @overload
    def put(
        self: Queue[bytes],
        item: Buffer,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_full: Literal["drop"],
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int | None: ...
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_full: Literal["raise"] = "raise",
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int: ...
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_full: Literal["drop"],
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int | None: ...
    push = put
    @overload
    def put_nowait(
        self: Queue[bytes],
        item: Buffer,
        *,
        on_full: Literal["raise"] = "raise",
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int: ...
    @overload
    def put_nowait(
        self: Queue[bytes],
        item: Buffer,
        *,
        on_full: Literal["drop"],
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int | None: ...
    @overload
    def put_nowait(
        self,
        item: _T,
        *,
        on_full: Literal["raise"] = "raise",
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int: ...
    @overload
    def put_nowait(
        self,
        item: _T,
        *,
        on_full: Literal["drop"],
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
    ) -> int | None: ...
    try_push = put_nowait
    @overload
    def put_many(
        self: Queue[bytes],
        items: Iterable[Buffer],
        *,
        atomic: Literal[True] = True,
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> range: ...
    @overload
    def put_many(
        self: Queue[bytes],
        items: Iterable[Buffer],
        *,
        atomic: Literal[False],
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> list[range]: ...
    @overload
    def put_many(
        self: Queue[bytes],
        items: Iterable[Buffer],
        *,
        atomic: bool = True,
        block: bool = True,
        timeout: float | None = None,
        keys: Iterable[bytes | str | None],
    ) -> list[int]: ...
    @overload
    def put_many(
        self,
        items: Iterable[_T],
        *,
        atomic: Literal[True] = True,
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> range: ...
    @overload
    def put_many(
        self,
        items: Iterable[_T],
        *,
        atomic: Literal[False],
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> list[range]: ...
    @overload
    def put_many(
        self,
        items: Iterable[_T],
        *,
        atomic: bool = True,
        block: bool = True,
        timeout: float | None = None,
        keys: Iterable[bytes | str | None],
    ) -> list[int]: ...
    enqueue_bulk = put_many
    @overload
    def _put_encoded(
        self,
        items: Iterable[Buffer],
        *,
        atomic: Literal[True] = True,
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> range: ...
    @overload
    def _put_encoded(
        self,
        items: Iterable[Buffer],
        *,
        atomic: Literal[False],
        block: bool = True,
        timeout: float | None = None,
        keys: None = None,
    ) -> list[range]: ...
    @overload
    def _put_encoded(
        self,
        items: Iterable[Buffer],
        *,
        atomic: bool = True,
        block: bool = True,
        timeout: float | None = None,
        keys: Iterable[bytes | str | None],
    ) -> list[int]: ...
    @overload
    def _put_encoded(
        self,
        items: Iterable[Buffer],
        *,
        atomic: Literal[True] = True,
        block: bool = True,
        timeout: float | None = None,
        keys: Iterable[bytes | str | None] | None,
    ) -> range | list[int]: ...
    def flush(self) -> None: ...
    def seal(self, undo: bool = False) -> None: ...
    def close(self) -> None: ...
    @overload
    def _claim(
        self,
        body: Buffer,
        headers: Mapping[str, str] | None,
        timeout: float,
        key: bytes | str | None = None,
        /,
    ) -> tuple[int, int | None]: ...
    @overload
    def _claim(
        self,
        body: Buffer,
        headers: Mapping[str, str] | None,
        timeout: None,
        key: bytes | str | None = None,
        /,
    ) -> tuple[int, int | None] | None: ...
    def _check_key(self, key: bytes | str, /) -> None: ...
    def _await_flush(self, ticket: int, /) -> None: ...
    def _members(self) -> list[tuple[Any, ...]]: ...
    def _options(self) -> dict[str, Any]: ...
    def _set_options(self, options: dict[str, object], /) -> None: ...
    def _keys(self) -> tuple[str, str, tuple[tuple[int, bytes], ...]]: ...
    def _add_key(self, newest: tuple[int, bytes] | None, id: int, check: bytes, /) -> bool: ...
    def _stats(self) -> dict[str, Any]: ...
    def _still_there(self) -> None: ...
    def _open_gate(self, name: str | None, device: int, inode: int, /) -> None: ...
    def _report_events(
        self,
        events: int,
        lost_items: int,
        lost_bytes: int,
        holder: int,
        torn_items: int,
        at_most: int,
        dead: str,
        /,
    ) -> None: ...
    def __bool__(self) -> Literal[True]: ...
    def __len__(self) -> int: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

@disjoint_base
class Consumer(Generic[_T]):
    on_loss: Callable[[Corrupt], object] | None
    def __init__(
        self,
        queue: Queue[_T],
        wait: float | None = None,
        views: bool = False,
        on_loss: Callable[[Corrupt], object] | None = None,
        item_type: type[Item[_T]] = ...,
    ) -> None: ...
    @property
    def queue(self) -> Queue[_T]: ...
    @property
    def views(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @overload
    def reserve(self, timeout: None = None) -> Item[_T]: ...
    @overload
    def reserve(self, timeout: float | None) -> Item[_T] | None: ...
    def reserve_many(
        self,
        n: int,
        *,
        max_bytes: int | None = None,
        linger: float = 0,
        timeout: float | None = None,
    ) -> list[Item[_T]]: ...
    @overload
    def take(self, timeout: None = None) -> Item[_T]: ...
    @overload
    def take(self, timeout: float | None) -> Item[_T] | None: ...
    def peek(self) -> Item[_T] | None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def skip(self) -> int | None: ...
    def ack(self, item: Item[_T], durable: bool = False) -> None: ...
    def ack_many(self, items: Iterable[Item[_T]], durable: bool = False) -> None: ...
    def ack_up_to(self, seq: int, /) -> int: ...
    def nack(self, item: Item[_T], /) -> None: ...
    def _tell_losses(self) -> None: ...
    def _redrive(self, item: Item[_T], queue: Queue[_T], timeout: float | None = 0, /) -> int: ...
    def rewind(self) -> tuple[int, int]: ...
    def checkpoint(self) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

@disjoint_base
class Item(Generic[_T_co]):
    @property
    def body(self) -> bytes:
        """bytes, or a read-only memoryview from a consumer with views=True, which typed code
        reads through memoryview(item.body)."""

    @property
    def value(self) -> _T_co:
        """What was put: the decoded body where the queue has a codec, else the body itself."""

    @property
    def seq(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def enqueued_at(self) -> float: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def settled(self) -> bool: ...
    def ack(self, durable: bool = False) -> None: ...
    def nack(self, *, reason: str | None = None) -> None: ...
    def dead(self, reason: str = "rejected") -> None: ...
    @property
    def _extension(self) -> bytes: ...
    def extend(self, seconds: float, /) -> None: ...
    def _unreserve(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Literal[False]: ...
    def __reduce__(self) -> NoReturn: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

@disjoint_base
class TypedItem(Item[_T_co]):
    """An item of a queue with a codec: `value` is decoded at its first use."""

@final
class View:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
