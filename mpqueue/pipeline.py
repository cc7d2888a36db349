"""From one queue into the next, each item once: what is put carries whom it was made of.

A step takes an item of A, puts into B, acks in A. Killed between the two, it does so again, and B
holds the item twice. Both have the same `identity`, from A's item, in the header `once-id`, by
which the reader of B drops the second: `mpqueue.inbox` does, and a further step hands it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpqueue.consumer import Item
    from mpqueue.queue import Queue

__all__ = ["ONCE_ID", "forward", "identity", "put"]

ONCE_ID = "once-id"
"""The header that names what an item was made of, where that may have been put twice."""


def identity(item: Item[Any]) -> str:
    """What is the same for all hand-outs of an item and all its repetitions: the header `once-id`,
    else `item.id`."""
    return item.headers.get(ONCE_ID) or item.id


def put(
    item: Item[Any],
    queue: Queue[Any],
    body: Any = None,
    *,
    part: str = "",
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Put into `queue` what was made of `item`, which stays reserved; ack it when all is put.

    body: what to put; None puts `item.value` as it is.
    part: tells apart several items that one is made into, "1", "2" and so on. The same item has to
    be made into the same parts each time.
    headers: beside `once-id`; None carries over those of the item.

    Durability: as of `queue.put()`. Raises what that raises.
    """
    key = identity(item) + ("/" + part if part else "")
    carried = item.headers if headers is None else headers
    put_once(queue, item.value if body is None else body, carried, key, timeout)


def forward(
    item: Item[Any],
    queue: Queue[Any],
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """put(), then ack the item.

    Durability: the copy is on the disk of `queue` before the ack, under every policy: a power cut
    leaves the item in one of the two or in both. Raises what put, flush and ack raise; the item is
    then still reserved, or comes again.
    """
    put(item, queue, body, headers=headers, timeout=timeout)
    if queue.options.durability not in ("sync", "group"):  # a put there has waited
        queue.flush()
    item.ack()


def put_once(
    queue: Queue[Any],
    body: Any,
    headers: Mapping[str, str],
    key: str,
    timeout: float | None,
) -> bool:
    """Put with an identity. False when the queue knew it and took nothing, which none does yet."""
    queue.put(body, timeout=timeout, headers={**headers, ONCE_ID: key})
    return True


def claim_once(
    queue: Queue[Any], body: bytes, headers: Mapping[str, str], key: str, timeout: float
) -> bool:
    """put_once() of stored bytes that does not wait for the disk, which flush() has to follow."""
    ticket = queue._claim(body, {**headers, ONCE_ID: key}, timeout)[1]
    if ticket == 0:  # nothing to wait for: the next segment is to be prepared
        queue._await_flush(0)
    return True
