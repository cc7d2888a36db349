"""What can go wrong, as one tree::

    MpqueueError
      Full (queue.Full)                  no room; transient; .reason
      Empty (queue.Empty)                get() and get_nowait() found nothing in time
      Closed (ValueError)                this handle was closed, or belongs to a parent process
      Sealed (queue.ShutDown)            no more input; for a consumer: and drained
      TooLarge (ValueError)              never fits, whatever the room
      ConsumerBusy (BlockingIOError)     another process has the role; .pid
      StaleItem                          settled through an earlier hand-out
      OutOfRange (ValueError)            ack_up_to() beyond what was delivered
      Corrupt                            damage was met and passed, once a loss; .segment .offset
                                         .lost_items .lost_bytes
      Poisoned (OSError)                 an earlier flush failed; .errno of it; latched for all
        FlushFailed                      this call's own flush failed: outcome unknown
      NoSpace (OSError)                  the disk is full; the queue is unchanged
      NotAQueue                          no queue at this path, or another kind of directory
      QueueRemoved (FileNotFoundError)   deleted or replaced under a live handle
      FormatError                        newer or unreadable format; nothing was touched
      OptionsMismatch (ValueError)       the queue was made with another value
      KeyMismatch                        the queue is encrypted, and its key is not at hand
      UnsupportedFilesystem (OSError)    no coherent shared mappings there; .fstype
      LockTimeout (TimeoutError)         the wait ended at the header lock; .pid holds it
      QueueInUse (BlockingIOError)       destroy or repair needs the queue alone; .pid has it
      CodecError (ValueError)            .item, with .id, could not be decoded; it is still reserved
      InternalError                      a bug, or a kernel that broke a promise

Errors of the operating system that belong to none of these (EACCES, EMFILE, EIO at open) are plain
`OSError`. All of them pickle with their attributes, so they cross process pools. An exception of
`put_many(atomic=False)` has `accepted`: how many items went in before it. What a signal handler
raises out of a put (KeyboardInterrupt) gets that attribute when it is above 0: those items are in
the queue, only the wait for the disk was interrupted. So does FlushFailed of a put.
"""

from __future__ import annotations

import errno as _errno
import queue as _queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mpqueue._native import Item

    class _ShutDown(Exception):
        """Stands for `queue.ShutDown`, which Python 3.13 brought."""
else:
    _ShutDown = getattr(_queue, "ShutDown", Exception)

__all__ = [
    "Closed",
    "CodecError",
    "ConsumerBusy",
    "Corrupt",
    "Empty",
    "FlushFailed",
    "FormatError",
    "Full",
    "InternalError",
    "KeyMismatch",
    "LockTimeout",
    "MpqueueError",
    "NoSpace",
    "NotAQueue",
    "OptionsMismatch",
    "OutOfRange",
    "Poisoned",
    "QueueInUse",
    "QueueRemoved",
    "Sealed",
    "StaleItem",
    "TooLarge",
    "UnsupportedFilesystem",
]


class MpqueueError(Exception):
    """Base of all exceptions of mpqueue."""

    accepted: int = 0
    """Items of this put that went in all the same."""


class _SystemError(MpqueueError, OSError):
    """An OSError whose text is its message alone; `errno` is an attribute as ever."""

    def __str__(self) -> str:
        return str(self.args[1] if len(self.args) > 1 else super().__str__())


class Full(MpqueueError, _queue.Full):
    """No room in time; nothing was put. Try again when the consumer has acked."""

    reason: str = "capacity"
    """Which bound: "capacity", "bytes" or "ring". "scheduled" and "pinned" cannot occur yet."""


class Empty(MpqueueError, _queue.Empty):
    """Nothing was ready in time."""


class Closed(MpqueueError, ValueError):
    """The handle was closed, or it is a consumer or batch of a parent process."""


class Sealed(MpqueueError, _ShutDown):
    """The queue is sealed: no more puts; a consumer gets this once it is drained as well."""


class TooLarge(MpqueueError, ValueError):
    """The item or batch can never fit; nothing was put."""


class ConsumerBusy(_SystemError, BlockingIOError):
    """Another live process or handle has the consumer role."""

    pid: int = -1
    """Who has it, for information only; -1 when unknown."""


class StaleItem(MpqueueError):
    """The item was handed out anew, or by another consumer; nothing was settled."""


class OutOfRange(MpqueueError, ValueError):
    """ack_up_to() beyond what was delivered; nothing was acked."""


class Corrupt(MpqueueError):
    """Damaged bytes were met, counted and passed. Reported once a loss; reserving goes on."""

    segment: int = 0
    """Generation of the segment that holds the damage."""
    offset: int = 0
    """Where it begins there, bytes."""
    lost_items: int = 0
    """Items lost by it, as far as they are known."""
    lost_bytes: int = 0
    """Bytes passed over."""


class Poisoned(_SystemError):
    """A flush failed earlier (`errno` says how). Puts and durable acks are refused in every
    process until the queue is opened or repaired alone and its bytes are proved again."""


class FlushFailed(Poisoned):
    """This call's own flush failed: whether its items survive a power cut is unknown."""


class NoSpace(_SystemError):
    """The disk or quota is full. The queue is unchanged; free some space and retry."""


class NotAQueue(MpqueueError):
    """There is no queue at this path."""


class QueueRemoved(_SystemError, FileNotFoundError):
    """The queue's files were deleted or replaced while this handle was open."""


class FormatError(MpqueueError):
    """The files are of a newer format or damaged beyond opening; nothing was touched."""


class OptionsMismatch(MpqueueError, ValueError):
    """An option was given that the existing queue does not have; nothing was touched."""


class KeyMismatch(MpqueueError):
    """The queue's items are encrypted, and no key or another one was given; nothing was touched."""


class UnsupportedFilesystem(_SystemError):
    """The filesystem has no coherent shared mappings. MPQUEUE_ALLOW_FILESYSTEM=type overrides."""

    fstype: str = ""
    """Its type, as MPQUEUE_ALLOW_FILESYSTEM takes it; "" when only a property of it is missing."""


class LockTimeout(_SystemError, TimeoutError):
    """The call's time ended while it waited for the header lock; nothing changed.

    Also calls that do not wait for room give the lock's living owner 250 ms to go on.
    """

    pid: int = -1
    """Who holds the lock; -1 when unknown."""


class QueueInUse(_SystemError, BlockingIOError):
    """destroy() and repair() need the queue alone; nothing was removed or changed."""

    pid: int = -1
    """One of the processes that have it open; -1 when unknown."""


class CodecError(MpqueueError, ValueError):
    """An item's bytes could not be decoded. It is still reserved: ack() drops it, nack() gives it
    back, and the consumer's skip() then passes it. `__cause__` is what the codec raised."""

    item: Item[Any] | None = None
    """The item; None in another process, where it cannot be settled."""
    id: str = ""
    """Its id."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "item"}
        return type(self), self.args, state


class InternalError(MpqueueError):
    """A bug in mpqueue or a broken promise of the kernel; please report the message."""


_DEFAULT_ERRNO = {
    "ConsumerBusy": _errno.EAGAIN,
    "QueueInUse": _errno.EAGAIN,
    "NoSpace": _errno.ENOSPC,
    "QueueRemoved": _errno.ENOENT,
    "UnsupportedFilesystem": _errno.ENOTSUP,
    "LockTimeout": _errno.ETIMEDOUT,
}


def _from_native(
    name: str,
    message: str,
    errno: int,
    reason: str,
    pid: int,
    generation: int,
    offset: int,
    lost_items: int,
    lost_bytes: int,
    accepted: int,
) -> BaseException:
    """The exception for a status of the native half, which calls this."""
    if name == "ValueError":
        return ValueError(message)
    if name == "MemoryError":
        return MemoryError(message)
    if name == "OSError":
        return OSError(errno, message)
    kind = globals()[name]
    error: MpqueueError
    if issubclass(kind, _SystemError):
        error = kind(errno or _DEFAULT_ERRNO.get(name, _errno.EIO), message)
    else:
        error = kind(message)
    if isinstance(error, Full):
        error.reason = reason
    elif isinstance(error, UnsupportedFilesystem):
        error.fstype = reason
    elif isinstance(error, Corrupt):
        error.segment = generation
        error.offset = offset
        error.lost_items = lost_items
        error.lost_bytes = lost_bytes
    elif isinstance(error, (ConsumerBusy, LockTimeout, QueueInUse)):
        error.pid = pid
    if accepted:
        error.accepted = accepted
    return error
