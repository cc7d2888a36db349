"""Goal: one tree of exceptions that says what it is and survives a process boundary.

Method: compare the tree with its drawing and with the standard library's classes; pickle each.
"""

from __future__ import annotations

import errno
import pickle
import queue
import re

import pytest

import mpqueue
from mpqueue import exceptions

ALL = [getattr(exceptions, name) for name in exceptions.__all__]


def _make(kind: type[BaseException]) -> BaseException:
    if issubclass(kind, exceptions._SystemError):
        return kind(errno.EIO, "what happened")
    return kind("what happened")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_exception_pickles_with_its_attributes(kind: type[BaseException]) -> None:
    error = _make(kind)
    for name, value in {"reason": "ring", "pid": 7, "lost_items": 3, "accepted": 9}.items():
        setattr(error, name, value)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "what happened"
    assert (copy.reason, copy.pid, copy.lost_items, copy.accepted) == ("ring", 7, 3, 9)
    assert getattr(copy, "errno", None) == getattr(error, "errno", None)


def test_tree_is_drawn_completely_and_exported() -> None:
    drawing = exceptions.__doc__ or ""
    drawn = set(re.findall(r"^ +([A-Z]\w+) ", drawing, re.M)) | {"MpqueueError"}
    drawn |= set(re.findall(r"^ +([A-Z]\w+)$", drawing, re.M))
    assert set(exceptions.__all__) <= drawn
    assert set(exceptions.__all__) <= set(mpqueue.__all__)
    assert sorted(mpqueue.__all__) == mpqueue.__all__
    for name in mpqueue.__all__:
        assert getattr(mpqueue, name).__doc__, f"{name} has no docstring"


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (mpqueue.Full, queue.Full),
        (mpqueue.Empty, queue.Empty),
        (mpqueue.Sealed, getattr(queue, "ShutDown", Exception)),
        (mpqueue.Closed, ValueError),
        (mpqueue.TooLarge, ValueError),
        (mpqueue.OutOfRange, ValueError),
        (mpqueue.OptionsMismatch, ValueError),
        (mpqueue.ConsumerBusy, BlockingIOError),
        (mpqueue.QueueInUse, BlockingIOError),
        (mpqueue.LockTimeout, TimeoutError),
        (mpqueue.Poisoned, OSError),
        (mpqueue.FlushFailed, mpqueue.Poisoned),
        (mpqueue.NoSpace, OSError),
        (mpqueue.QueueRemoved, FileNotFoundError),
        (mpqueue.UnsupportedFilesystem, OSError),
    ],
    ids=lambda kind: kind.__name__,
)
def test_exception_is_caught_as_its_standard_kind(
    kind: type[BaseException], base: type[BaseException]
) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, mpqueue.MpqueueError)


def test_native_statuses_become_exceptions_with_attributes() -> None:
    def make(name: str, **given: object) -> BaseException:
        fields: dict[str, object] = {
            "message": "said",
            "errno": 0,
            "reason": "",
            "pid": -1,
            "generation": 0,
            "offset": 0,
            "lost_items": 0,
            "lost_bytes": 0,
            "accepted": 0,
        }
        return exceptions._from_native(name, **{**fields, **given})

    full = make("Full", reason="bytes", accepted=4)
    assert isinstance(full, mpqueue.Full)
    assert (full.reason, full.accepted) == ("bytes", 4)
    poisoned = make("Poisoned", errno=errno.EIO)
    assert isinstance(poisoned, mpqueue.Poisoned)
    assert (poisoned.errno, str(poisoned)) == (errno.EIO, "said")
    corrupt = make("Corrupt", generation=3, offset=64, lost_items=1, lost_bytes=96)
    assert isinstance(corrupt, mpqueue.Corrupt)
    assert (corrupt.segment, corrupt.offset) == (3, 64)
    assert (corrupt.lost_items, corrupt.lost_bytes) == (1, 96)
    no_space = make("NoSpace")
    assert isinstance(no_space, mpqueue.NoSpace)
    assert no_space.errno == errno.ENOSPC
    assert isinstance(make("OSError", errno=errno.EACCES), PermissionError)
    assert isinstance(make("ValueError"), ValueError)
    nfs = make("UnsupportedFilesystem", reason="nfs")
    assert isinstance(nfs, mpqueue.UnsupportedFilesystem)
    assert nfs.fstype == pickle.loads(pickle.dumps(nfs)).fstype == "nfs"
    for name in exceptions.__all__:
        assert type(make(name)).__name__ == name
