"""Consumer: the role that takes items out, one process at a time, any number of threads in it.

The native half reserves and settles; here are the loops. An item leaves the queue only by ack:
whatever ends a loop early gives the item in hand back.
"""

from __future__ import annotations

from mpqueue import _native
from mpqueue._native import Item
from mpqueue.exceptions import Sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Literal, NoReturn, Self

    from typing_extensions import TypeVar

    from mpqueue.exceptions import Corrupt
    from mpqueue.queue import Queue

    AckWhen = Literal["after", "on_read"]
    T = TypeVar("T", default=bytes)
else:
    T = "T"  # subscripts the base class without the cost of importing typing

__all__ = ["Consumer", "Item"]


class Consumer(_native.Consumer[T]):
    """The consumer role of a queue, held until close(), the end of `with`, or the process.

    Iterating blocks for items until the queue is sealed and drained. Item i is acked when item
    i + 1 is asked for, unless the body of the loop settled it; `break`, an exception and close()
    give it back.

    Durability: an ack survives the consumer's death at once, and a power cut within `ack_linger`,
    at flush(), checkpoint() and close(), or when `ack(durable=True)` returns (always under the
    policy sync; never promised under none).

    After a crash of the consumer every item that was not acked is handed out again.

    An item that the queue's codec cannot decode raises CodecError from `item.value`, not before. It
    stays in the queue until it is acked or, once it is ready again, passed by skip().

    Closing gives back what is in hand. So a `with item:` block that closes its own consumer raises
    Closed at its end: that item was not acked and comes again. Ack it first.
    """

    queue: Queue[T]

    def __init__(
        self,
        queue: Queue[T],
        *,
        wait: float | None = None,
        views: bool = False,
        on_loss: Callable[[Corrupt], object] | None = None,
    ) -> None:
        """Take the role; use `queue.consumer()`.

        wait: seconds to wait for a live holder to let go; None does not wait.
        views: `item.body` is a read-only memoryview over the segment instead of bytes.
        on_loss: called with each Corrupt instead of it being raised from reserve.

        Raises ConsumerBusy while another live process or handle has the role.
        """
        super().__init__(queue, wait=wait, views=views, on_loss=on_loss)

    def __iter__(self) -> Iterator[Item[T]]:
        return self.follow()

    def follow(self, ack: AckWhen = "after") -> Iterator[Item[T]]:
        """Yield items as they come, until the queue is sealed and drained.

        ack="after" acks an item when the next one is asked for; ack="on_read" acks it before the
        body of the loop sees it, which is at most once; what cannot be decoded is not acked but
        raised as CodecError. Errors of reserve, Corrupt among them, are raised too and end this
        iterator; a new one goes on where it stopped.
        """
        return self._items(None, _acks_on_read(ack))

    def drain(self, ack: AckWhen = "after") -> Iterator[Item[T]]:
        """Yield what is ready and stop when nothing is. `ack` and errors as for follow()."""
        return self._items(0, _acks_on_read(ack))

    def _items(self, timeout: float | None, on_read: bool) -> Iterator[Item[T]]:
        while True:
            try:
                item = self.reserve(timeout)
            except Sealed:
                return
            if item is None:
                return
            if on_read:
                _ = item.value  # decoded before the ack: what cannot be stays
                item.ack()
                yield item
            else:
                with item:
                    yield item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Consumer cannot be pickled: the role belongs to this process. Pickle the Queue and "
            "call its consumer() in the process that is to consume"
        )

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<mpqueue.Consumer of {self.queue.path!r}{state}>"


def _acks_on_read(ack: str) -> bool:
    if ack not in ("after", "on_read"):
        raise ValueError(f"ack is {ack!r}: it is 'after' or 'on_read'")
    return ack == "on_read"
