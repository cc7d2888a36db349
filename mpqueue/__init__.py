"""mpqueue: a durable, at-least-once queue shared by processes through a directory of files.

Any process opens the directory and puts; one process at a time consumes:

>>> q = mpqueue.Queue("spool")  # doctest: +SKIP
>>> seq = q.put(b"hello")  # doctest: +SKIP
>>> with q.consumer() as c:  # doctest: +SKIP
...     for item in c:  # acked when the next one is asked for
...         handle(item.body)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpqueue import codecs as codecs
    from mpqueue.consumer import Consumer, Item
    from mpqueue.dead import DeadLetter, DeadLetters
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
    "DeadLetter",
    "DeadLetters",
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

_LIBRARIES = ("codecs",)
"""Public modules whose names are not repeated here."""

_PARTS = ("consumer", "dead", "exceptions", "options", "queue", "stats")
"""Modules that hold the names above. They are imported at the first use of one."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("mpqueue")
    if name == "_native":  # each `from mpqueue import _native` asks here first
        try:
            return __import__("mpqueue._native", fromlist=["*"])
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{__path__[0]} has no compiled core (mpqueue._native) for this Python: if it is "
                "in the source tree, install that with pip and run Python elsewhere, or with -P",
                name="mpqueue._native",
            ) from error
    if name in __all__:
        for part in _PARTS:
            module = __import__(f"mpqueue.{part}", fromlist=["*"])
            globals().update(
                {public: vars(module)[public] for public in module.__all__ if public in __all__}
            )
        return globals()[name]
    if name in _PARTS or name in _LIBRARIES:
        return __import__(f"mpqueue.{name}", fromlist=["*"])
    raise AttributeError(f"module 'mpqueue' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LIBRARIES, *_PARTS, "__version__"})
