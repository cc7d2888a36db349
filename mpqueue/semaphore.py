"""The queue's named POSIX semaphore: made, inspected and unlinked through `posix_ipc`.

The semaphore only puts processes to sleep while they wait for the header lock; who holds the lock
is decided elsewhere. So nothing here may fail a call: without a semaphore the waits use a futex.
Never waits on the semaphore and never posts it; the native half does both.
"""

from __future__ import annotations

import os

from mpqueue import _log
from mpqueue._record import Record

__all__ = ["Semaphore", "ensure", "identity", "inspect", "unlink"]

_warned = False


class Semaphore(Record):
    """What is known of a queue's semaphore."""

    name: str
    """Its POSIX name, with the leading slash."""
    file: str
    """The file that stands for it under /dev/shm; "" when the libc hides it."""
    mode: int
    """Permission bits of that file; 0 when it is hidden."""
    uid: int
    """Owner of that file; -1 when it is hidden."""
    identity: tuple[int, int]
    """st_dev and st_ino of that file; (0, 0) when it is hidden."""


def _file(name: str) -> str:
    """glibc and musl name the file differently; "" when there is neither."""
    for candidate in (f"/dev/shm/sem.{name[1:]}", f"/dev/shm/{name[1:]}"):
        if os.path.exists(candidate):
            return candidate
    return ""


def _set_mode(name: str, mode: int, directory: str) -> None:
    """The umask narrowed the mode at creation; only the owner can and needs to widen it.

    What root made for somebody's queue is that somebody's.
    """
    path = _file(name)
    if not path:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and found.st_mode & 0o777 != mode:
            os.fchmod(fd, mode)
        owner = os.stat(directory)
        if found.st_uid == os.geteuid() == 0 != owner.st_uid:
            os.fchown(fd, owner.st_uid, owner.st_gid)
    finally:
        os.close(fd)


def ensure(name: str, mode: int, directory: str) -> bool:
    """Make the semaphore of the queue in `directory` if it is missing.

    False when that failed: said once in the log.
    """
    global _warned
    try:
        import posix_ipc

        posix_ipc.Semaphore(name, posix_ipc.O_CREAT, mode=mode, initial_value=0).close()
        _set_mode(name, mode, directory)
    except Exception as error:  # whatever it is, the queue works without
        if not _warned:
            _warned = True
            _log.warn(
                "no semaphore %s (%s): waits for the header lock use a futex, which costs latency "
                "only; check that /dev/shm is mounted and writable",
                name,
                error,
            )
        return False
    return True


def identity(name: str) -> tuple[int, int]:
    """st_dev and st_ino of the file that stands for it here; (0, 0) when there is none or it is
    hidden. One name may stand for several semaphores: each /dev/shm has its own."""
    try:
        found = os.stat(_file(name))
    except OSError:  # hidden, or gone meanwhile
        return 0, 0
    return found.st_dev, found.st_ino


def inspect(name: str) -> Semaphore | None:
    """What there is under this name, or None. Makes nothing."""
    try:
        import posix_ipc

        posix_ipc.Semaphore(name).close()
    except Exception:  # missing, hidden or not ours to open: nothing to show
        return None
    path = _file(name)
    found = os.stat(path) if path else None
    return Semaphore(
        name=name,
        file=path,
        mode=found.st_mode & 0o777 if found else 0,
        uid=found.st_uid if found else -1,
        identity=(found.st_dev, found.st_ino) if found else (0, 0),
    )


def unlink(name: str) -> bool:
    """Remove the name; sleepers keep what they have open. False when there was none to remove."""
    try:
        import posix_ipc

        posix_ipc.unlink_semaphore(name)
    except Exception:  # gone already, or not ours: it costs nothing to leave it
        return False
    return True
