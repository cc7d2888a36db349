"""mpqueue: a durable, at-least-once queue shared by processes through a directory of files.

Any process opens the directory and puts; one process at a time consumes:

>>> q = mpqueue.Queue("spool")  # doctest: +SKIP
>>> seq = q.put(b"hello")  # doctest: +SKIP
>>> with q.consumer() as c:  # doctest: +SKIP
...     for item in c:  # acked when the next one is asked for
...         handle(item.body)
"""

from __future__ import annotations

from mpqueue.consumer import Consumer, Item
from mpqueue.exceptions import (
    Closed,
    CodecError,
    ConsumerBusy,
    Corrupt,
    Empty,
    FlushFailed,
    FormatError,
    Full,
    InternalError,
    KeyMismatch,
    LockTimeout,
    MpqueueError,
    NoSpace,
    NotAQueue,
    OptionsMismatch,
    OutOfRange,
    Poisoned,
    QueueInUse,
    QueueRemoved,
    Sealed,
    StaleItem,
    TooLarge,
    UnsupportedFilesystem,
)
from mpqueue.options import Options
from mpqueue.queue import Batch, Queue, destroy, inspect, repair
from mpqueue.stats import Histogram, Member, Repair, Stats

__all__ = [
    "Batch",
    "Closed",
    "CodecError",
    "Consumer",
    "ConsumerBusy",
    "Corrupt",
    "Empty",
    "FlushFailed",
    "FormatError",
    "Full",
    "Histogram",
    "InternalError",
    "Item",
    "KeyMismatch",
    "LockTimeout",
    "Member",
    "MpqueueError",
    "NoSpace",
    "NotAQueue",
    "Options",
    "OptionsMismatch",
    "OutOfRange",
    "Poisoned",
    "Queue",
    "QueueInUse",
    "QueueRemoved",
    "Repair",
    "Sealed",
    "StaleItem",
    "Stats",
    "TooLarge",
    "UnsupportedFilesystem",
    "destroy",
    "inspect",
    "repair",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("mpqueue")
    raise AttributeError(f"module 'mpqueue' has no attribute {name!r}")
