"""Goal: limits of the process (open files, file size) are errors of the call, and nothing is lost.

Method: children that lower their own limits around each act and raise them again.
"""

from __future__ import annotations

import errno
from pathlib import Path

import mpqueue
from rig import drain, fingerprint, make, run

LIMITED = """
import contextlib, resource
import mpqueue.consumer, mpqueue.stats

@contextlib.contextmanager
def limit(kind, soft):
    was = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, was)

def attempt(act):
    try:
        act()
    except OSError as error:
        say(type(error).__name__, error.errno, error.strerror)
    else:
        say("fine")

@contextlib.contextmanager
def no_files(room):
    fillers = []
    with limit(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + room):
        try:
            while True:
                fillers.append(os.dup(0))
        except OSError:
            for fd in fillers[len(fillers) - room :]:
                os.close(fd)
            del fillers[len(fillers) - room :]
        try:
            yield
        finally:
            for fd in fillers:
                os.close(fd)
"""


def test_open_without_free_descriptors_fails_untouched(tmp_path: Path) -> None:
    """Every number of free descriptors that is too small: nothing is touched, none leaks."""
    path = tmp_path / "spool"
    make(path, [b"precious"] * 3)
    script = (
        LIMITED
        + """
before = os.listdir("/proc/self/fd")
try:
    with no_files(int(args[1])):
        mpqueue.Queue(args[0], create=False)
except OSError as error:
    say(error.errno, error.strerror)
assert os.listdir("/proc/self/fd") == before
"""
    )
    for room in range(10):
        before = fingerprint(path)
        lines = run(script, path, room)
        if not lines:
            break
        assert lines[0].startswith(f"{errno.EMFILE} {path}")
        assert "ulimit -n" in lines[0]
        assert fingerprint(path) == before
    assert 2 < room < 9
    assert drain(path) == [b"precious"] * 3


def test_attached_process_without_descriptors_loses_nothing(tmp_path: Path) -> None:
    """Puts go on in the mapped segment, fail where a file must be opened, and go on afterwards."""
    path = tmp_path / "spool"
    script = (
        LIMITED
        + """
q = mpqueue.Queue(args[0], segment_size=65536, durability="none")
accepted = [q.put(b"first")]
with no_files(0):
    try:
        while True:
            accepted.append(q.put(bytes(1000)))
    except OSError as error:
        say(error.errno, error.strerror)
accepted.append(q.put(b"last"))
assert accepted == list(range(1, len(accepted) + 1))
with q.consumer() as c:
    with no_files(0):
        attempt(lambda: mpqueue.Queue(args[0]))
        attempt(q.seal)
        got = [c.reserve(0).body]
    for _ in range(2):
        got.extend(item.body for item in c.drain())
c = None
assert not q.stats().sealed
q.close()
say(len(accepted), got[0].decode(), got[-1].decode(), q.stats().lost_items)
"""
    )
    refused, opened, sealed, totals = run(script, path)
    assert refused.startswith(f"{errno.EMFILE} {path}")
    assert "ulimit -n" in refused
    for line in (opened, sealed):
        assert line.startswith(f"OSError {errno.EMFILE} {path}")
    count, first, last, lost = totals.split()
    assert int(count) > 30
    assert (first, last, lost) == ("first", "last", "0")
    assert drain(path) == []


def test_consumer_without_descriptors_waits_and_skips_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    make(path, [b"%d" % n * 200 for n in range(300)])
    script = (
        LIMITED
        + """
q = mpqueue.Queue(args[0])
c = q.consumer()
got = []
failed = 0
while (item := None) is None:
    with no_files(0):
        try:
            item = c.reserve(0)
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            failed += 1
            item = False
    if item is False:
        item = c.reserve(0)
    if item is None:
        break
    got.append(item.body)
    item.ack()
assert got == [b"%d" % n * 200 for n in range(300)], len(got)
say(failed, q.stats().lost_items)
q.close()
"""
    )
    failed, lost = run(script, path)[0].split()
    assert int(failed) >= 1
    assert lost == "0"
    assert drain(path) == []


def test_file_size_limit_makes_no_queue(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    script = (
        LIMITED
        + """
for bytes_ in (0, 4096, 65536):
    with limit(resource.RLIMIT_FSIZE, bytes_):
        attempt(lambda: mpqueue.Queue(args[0], segment_size=65536))
q = mpqueue.Queue(args[0])
q.put(b"x")
q.close()
"""
    )
    for line in run(script, path):
        assert line.startswith(f"OSError {errno.EFBIG} {path}")
        assert "ulimit -f" in line
    assert drain(path) == [b"x"]


def test_file_size_limit_leaves_the_queue_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    make(path, [b"precious"] * 3, segment_size=1 << 20)
    script = (
        LIMITED
        + """
q = mpqueue.Queue(args[0], create=False)
accepted = 3
with limit(resource.RLIMIT_FSIZE, 1 << 19):
    for _ in range(2):
        try:
            while True:
                q.put(bytes(50_000))
                accepted += 1
        except OSError as error:
            say(error.errno, error.strerror)
    assert len(q) == accepted
    with q.consumer() as c:
        c.take()
assert q.put(b"after") == accepted + 1
say(accepted)
q.close()
"""
    )
    *refused, accepted = run(script, path)
    assert len(refused) == 2
    for line in refused:
        assert line.startswith(f"{errno.EFBIG} {path}")
        assert "ulimit -f" in line
    bodies = drain(path)
    assert bodies[:2] == [b"precious"] * 2
    assert bodies[-1] == b"after"
    assert len(bodies) == int(accepted)


def test_file_size_limit_of_a_consumer_is_its_own_problem(tmp_path: Path) -> None:
    """Its cursor could not be written, and nothing was: no other process is held up by that."""
    path = tmp_path / "spool"
    with mpqueue.Queue(path) as q:
        q.put_many([b"1", b"2"])
        script = (
            LIMITED
            + """
q = mpqueue.Queue(args[0], create=False)
with q.consumer() as c:
    item = c.reserve(0)
    with limit(resource.RLIMIT_FSIZE, 0):
        try:
            item.ack(durable=True)
        except OSError as error:
            say(error.errno, error.strerror)
    c.checkpoint()
q.close()
"""
        )
        (refused,) = run(script, path)
        assert refused.startswith(f"{errno.EFBIG} {path}")
        assert "ulimit -f" in refused
        q.put(b"3")
    assert drain(path) == [b"2", b"3"]
