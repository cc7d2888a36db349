"""Goal: files deleted, replaced or truncated under live processes are exceptions, not deaths.

Method: children hold the queue open and do everything that the API has, while the parent takes the
directory, meta, control, the cursor or segments away. A child must end by itself with status 0: a
SIGBUS, a hang or an exception of the wrong kind does not.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

import mpqueue
from rig import Child, advises, drain, make, remove, until

policy = pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])

KINDS = """
import threading
def kind(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "fine"
"""


# ---- deleted or replaced


@policy
@pytest.mark.parametrize("how", ["directory", "meta", "replaced"])
def test_deleted_queue_is_told_by_every_call(tmp_path: Path, durability: str, how: str) -> None:
    """Calls that look at the disk raise QueueRemoved; puts that need none may go on for a while."""
    path = tmp_path / "spool"
    script = (
        KINDS
        + """
q = mpqueue.Queue(args[0], segment_size=65536, durability=args[1].decode())
c = q.consumer()
q.put(b"x")
item = c.reserve()
say("open")
listen()
try:
    for _ in range(1000):
        q.put(bytes(1000))
except mpqueue.QueueRemoved as error:
    assert error.errno == errno.ENOENT and isinstance(error, FileNotFoundError)
    assert os.fsdecode(args[0]) in str(error) and "open it again" in str(error), error
else:
    raise AssertionError("a thousand puts into nothing")
if args[1] in (b"group", b"sync"):
    assert len(q) == 2  # the very first put raised
for act in (q.flush, q.seal, lambda: q.put_many([bytes(60_000)] * 3, atomic=False),
            lambda: q.set_options(capacity=5)):
    assert kind(act) == "QueueRemoved", act
while (got := kind(lambda: c.take(timeout=10))) == "fine":
    pass
assert got == "QueueRemoved", got
assert kind(item.ack) in ("fine", "QueueRemoved")
assert kind(c.checkpoint) == "QueueRemoved"
assert kind(q.stats) == kind(q.members) == kind(lambda: len(q)) == "fine"
c.close()
q.close()
say("closed")
"""
    )
    with Child(script, path, durability) as child:
        assert child.hear() == "open"
        if how == "directory":
            remove(path)
        elif how == "meta":
            (path / "meta").unlink()
        else:
            remove(path)
            make(path, [b"new"])
        child.tell()
        assert child.hear() == "closed"
        child.ends()
    if how == "replaced":
        assert drain(path) == [b"new"]


@policy
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_deleted_segments_are_told_and_refuse_puts(
    tmp_path: Path, durability: str, how: str
) -> None:
    """A file without its name is on no disk: whoever flushes says so; later puts count nowhere."""
    path = tmp_path / "spool"
    with mpqueue.Queue(path, segment_size=1 << 16, durability=durability, interval=3600) as q:
        for n in range(100):
            q.put(b"%d" % n * 300)
        q.flush()
        for file in path.glob("segment-*"):
            data = file.read_bytes()
            file.unlink()
            if how == "replaced":
                file.write_bytes(data)
        if durability in ("none", "interval"):  # nothing looks at the disk yet
            q.put(b"unknown")
            with pytest.raises(mpqueue.QueueRemoved, match="open it again"):
                q.flush()
        else:
            with pytest.raises(mpqueue.QueueRemoved, match="may be lost"):
                q.put(b"unknown")
        assert len(q) == 101
        for _ in range(3):
            with pytest.raises(mpqueue.QueueRemoved, match="open it again"):
                q.put(b"refused")
            with pytest.raises(mpqueue.QueueRemoved, match="open it again"):
                q.put_many([b"refused"] * 3)
        assert len(q) == 101
    told: list[mpqueue.Corrupt] = []
    with mpqueue.Queue(path, on_loss=told.append) as q, q.consumer() as c:
        got = [item.body for item in c.drain()]
        lost = q.stats().lost_items
        assert lost == sum(loss.lost_items for loss in told) == 101 - len(got)
        assert lost == (101 if how == "deleted" else 1)
        q.put(b"next")
        item = c.take()
        assert item is not None and item.body == b"next"


@pytest.mark.parametrize("durability", ["none", "interval"])
def test_a_close_tells_what_no_call_has_told(tmp_path: Path, durability: str) -> None:
    """What was put and not flushed is gone with the directory; unless it was drained before."""
    path = tmp_path / "spool"
    q = mpqueue.Queue(path, durability=durability, interval=3600)
    q.put(b"gone")
    remove(path)
    with pytest.raises(mpqueue.QueueRemoved, match="open it again"):
        q.close()
    assert q.closed
    q.close()
    q = mpqueue.Queue(path, durability=durability, interval=3600)
    q.put(b"taken")
    with q.consumer() as c:
        assert c.take() is not None
        remove(path)
    q.close()


BLOCKED = {
    "put": "lambda: q.put(b'never')",
    "put_many": "lambda: q.put_many([b'never'])",
    "reserve": "lambda: [c.take() for _ in range(9)]",
    "reserve_many": "lambda: [c.ack_many(c.reserve_many(1)) for _ in range(9)]",
    "wait": "lambda: [(c.skip(), c.wait()) for _ in range(9)]",
    "consumer": "lambda: other.consumer(wait=600)",
    "join": "lambda: q.join(600)",
}


@pytest.mark.parametrize("call", BLOCKED)
def test_deleting_the_directory_ends_a_blocked_call(tmp_path: Path, call: str) -> None:
    path = tmp_path / "spool"
    script = (
        KINDS
        + f"""
q = mpqueue.Queue(args[0], capacity=1, durability="none")
other = mpqueue.Queue(args[0])
c = q.consumer()
q.put(b"full")
say("open")
say(kind({BLOCKED[call]}))
q.close()
other.close()
"""
    )
    with mpqueue.Queue(path, capacity=1, durability="none") as watch, Child(script, path) as child:
        assert child.hear() == "open"
        before = watch.stats().waits
        if call != "join":
            until(lambda: watch.stats().waits > before + 2)
        remove(path)
        assert child.hear() == "QueueRemoved"
        child.ends()


def test_deleted_while_four_processes_work(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    script = """
q = mpqueue.Queue(args[0], segment_size=65536)
say("open")
try:
    if args[1] == b"0":
        with q.consumer() as c:
            while True:
                c.take()
    while True:
        q.put(bytes(1000))
except mpqueue.QueueRemoved:
    say("removed")
q.close()
"""
    children = [Child(script, path, n) for n in range(4)]
    try:
        for child in children:
            assert child.hear() == "open"
        with mpqueue.Queue(path) as q:
            until(lambda: q.stats().items_acked > 100)
            remove(path)
        for child in children:
            assert child.hear() == "removed"
            child.ends()
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert not path.exists()


def test_renamed_directory_goes_on(tmp_path: Path) -> None:
    """The directory is held, not its name."""
    with mpqueue.Queue(tmp_path / "a", segment_size=1 << 16) as q, q.consumer() as c:
        (tmp_path / "a").rename(tmp_path / "b")
        for _ in range(300):
            q.put(bytes(1000))
        assert len(list(c.drain())) == 300
        c.checkpoint()
    make(tmp_path / "b", [b"x"])
    assert drain(tmp_path / "b") == [b"x"]


def test_control_deleted_while_open_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    make(path, [b"one"])
    with mpqueue.Queue(path) as q:
        (path / "control").unlink()
        with pytest.raises(mpqueue.QueueRemoved) as refused:
            mpqueue.Queue(path)
        advises(refused.value, path, "control", "close them all", "open it again")
        with pytest.raises(mpqueue.QueueRemoved, match="control"):
            q.put(b"two")
    assert drain(path)[:1] == [b"one"]


# ---- truncated


def test_a_fork_after_control_was_truncated_is_told_the_same(tmp_path: Path) -> None:
    script = (
        KINDS
        + """
q = mpqueue.Queue(args[0], durability="none")
q.put(b"before")
os.truncate(os.path.join(args[0], b"control"), 0)
pid = os.fork()
if pid == 0:
    os._exit(0 if kind(lambda: q.put(b"after")) == "QueueRemoved" else 1)
assert os.waitpid(pid, 0)[1] == 0
assert kind(lambda: q.put(b"after")) == "QueueRemoved"
say("told")
"""
    )
    with Child(script, tmp_path / "spool") as child:
        assert child.hear() == "told"
        child.ends()


EVERYTHING = (
    KINDS
    + """
ALLOWED = {"fine", "OSError", "Corrupt", "InternalError", "QueueRemoved", "Closed", "Poisoned",
           "FlushFailed", "Full", "StaleItem", "NoSpace", "ConsumerBusy",
           "FormatError", "NotAQueue"}
import warnings
warnings.simplefilter("ignore", ResourceWarning)
q = mpqueue.Queue(args[0], segment_size=65536, durability=args[1].decode())
other = mpqueue.Queue(args[0])
c = q.consumer()
for n in range(150):
    q.put(b"%d" % n * 100)
items = c.reserve_many(40)
c.ack_many(items[:10])
say("open")
listen()
seen = set()
def attempt(act):
    seen.add(kind(act))
for _ in range(3):
    attempt(lambda: q.put(bytes(1000)))
    attempt(lambda: q.put_nowait(bytes(1000)))
    attempt(lambda: q.put(bytes(200_000), timeout=0))
    attempt(lambda: other.put_many([bytes(1000)] * 20, timeout=0))
    attempt(lambda: c.reserve_many(50, timeout=0))
    attempt(lambda: c.reserve(0.01))
    attempt(lambda: c.peek())
    attempt(lambda: c.skip())
    attempt(lambda: c.wait(0))
    attempt(items[10].ack)
    attempt(items[11].nack)
    attempt(lambda: c.ack_many(items[12:20]))
    attempt(lambda: c.ack_up_to(20))
    attempt(c.rewind)
    attempt(lambda: c.take(0))
    attempt(q.flush)
    attempt(c.checkpoint)
    attempt(q.stats)
    attempt(q.members)
    attempt(lambda: len(q))
    attempt(lambda: q.options)
    attempt(lambda: q.full())
    attempt(lambda: q.seal())
    attempt(lambda: q.seal(undo=True))
    attempt(lambda: q.set_options(capacity=1000))
    attempt(lambda: other.consumer(wait=0.01))
    attempt(lambda: mpqueue.Queue(args[0]).close())
    attempt(lambda: mpqueue.inspect(args[0]).close())
    pid = os.fork()
    if pid == 0:
        try:
            kind(lambda: q.put(b"child"))
            kind(q.stats)
            kind(q.close)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
attempt(c.close)
attempt(other.close)
attempt(q.close)
assert seen <= ALLOWED, seen
say("alive", *sorted(seen))
"""
)


def _victims(path: Path, kind: str) -> list[Path]:
    return sorted(path.glob("segment-*")) if kind == "segments" else [path / kind]


@policy
@pytest.mark.parametrize("size", [0, 4096, 20_000, -4096])
@pytest.mark.parametrize("kind", ["segments", "control", "cursor", "meta"])
def test_truncated_file_under_a_live_process(
    tmp_path: Path, kind: str, size: int, durability: str
) -> None:
    """size: what is left of the file; a negative number is cut off its end."""
    path = tmp_path / "spool"
    with Child(EVERYTHING, path, durability) as child:
        assert child.hear() == "open"
        for victim in _victims(path, kind):
            whole = victim.stat().st_size
            os.truncate(victim, min(whole, size if size >= 0 else whole + size))
        child.tell()
        words = child.hear().split()
        assert words[:1] == ["alive"]
        child.ends()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("garbage", ["zeros", "ones", "random", "random words"])
def test_control_overwritten_under_a_live_process(tmp_path: Path, garbage: str, seed: int) -> None:
    """No crash, no hang: puts and looks say that it was overwritten, and nothing of it lasts."""
    path = tmp_path / "spool"
    policies = ["none", "interval", "group", "sync"]
    with Child(EVERYTHING, path, policies[seed]) as child:
        assert child.hear() == "open"
        control = path / "control"
        _spoil(control, garbage, random.Random(seed))
        child.tell()
        assert child.hear().split()[:1] == ["alive"]
        child.ends()
    with mpqueue.Queue(path) as q:
        assert q.put(b"next") < 1 << 40, "a seq out of garbage"
        with q.consumer() as c:
            assert [item.body for item in c.drain()][-1] == b"next"


def _spoil(control: Path, garbage: str, dice: random.Random) -> None:
    size = control.stat().st_size
    with control.open("r+b", buffering=0) as file:
        if garbage == "random words":  # mostly in the header page
            for _ in range(200):
                file.seek(dice.randrange(256, 2816 if dice.random() < 0.8 else size - 8) & ~7)
                file.write(dice.randbytes(8))
        elif garbage == "random":
            file.write(dice.randbytes(size))
        else:
            file.write((b"\0" if garbage == "zeros" else b"\xff") * size)


@pytest.mark.parametrize("act", ["checkpoint", "stats", "flush", "put", "close"])
def test_control_overwritten_with_zeros_is_told_by_name(tmp_path: Path, act: str) -> None:
    script = """
q = mpqueue.Queue(args[0], segment_size=65536)
for n in range(200):
    q.put(b"%05d" % n * 20)
control = args[0] + b"/control"
with open(control, "r+b") as file:
    file.write(bytes(os.path.getsize(control)))
for _ in range(2):
    try:
        q.put(b"x") if args[1] == b"put" else getattr(q, args[1].decode())()
    except mpqueue.InternalError as error:
        assert "overwritten" in str(error) and "open it again" in str(error), error
        say("told")
    else:
        say("fine")
"""
    with Child(script, tmp_path / "spool", act) as child:
        assert child.hear() == "told"
        assert child.hear() == ("fine" if act == "close" else "told")
        child.ends()


@pytest.mark.parametrize("kind", ["segments", "control"])
def test_truncated_file_under_load_of_four_processes(tmp_path: Path, kind: str) -> None:
    """Everybody is told, nobody hangs or is killed by it, and everybody can close."""
    path = tmp_path / "spool"
    script = """
q = mpqueue.Queue(args[0], segment_size=65536, durability="none", max_segments=8)
say("open")
try:
    if args[1] == b"0":
        with q.consumer() as c:
            for n in range(1 << 60):
                if c.take(timeout=1) is None:
                    break
                if n == 1000:
                    say("busy")
    while True:
        q.put(bytes(1000), timeout=1)
except (OSError, mpqueue.MpqueueError, TimeoutError):
    pass
try:
    q.close()
except (OSError, mpqueue.MpqueueError):
    pass
say("ended")
"""
    children = [Child(script, path, n) for n in range(4)]
    try:
        for child in children:
            assert child.hear() == "open"
        assert children[0].hear() == "busy"
        for child in children:  # a segment's file has its name for a millisecond only
            os.kill(child.pid, signal.SIGSTOP)
        for child in children:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        for victim in _victims(path, kind):
            os.truncate(victim, 0)
        for child in children:
            os.kill(child.pid, signal.SIGCONT)
        for child in children:
            assert child.hear() == "ended"
            child.ends()
    finally:
        for child in children:
            child.__exit__(None, None, None)


@pytest.mark.parametrize("left", [0, 4096, 16384, 30_000, 65_535])
def test_truncated_segment_keeps_its_survivors(tmp_path: Path, left: int) -> None:
    """Closed and cut: what lies before the cut is delivered, the cut is counted, puts go on."""
    path = tmp_path / "spool"
    bodies = [b"%03d" % n * 300 for n in range(60)]
    make(path, bodies)
    os.truncate(path / "segment-000000000001", left)
    losses: list[mpqueue.Corrupt] = []
    with mpqueue.Queue(path, on_loss=losses.append) as q:
        q.put(b"after")
        with q.consumer() as c:
            got = [item.body for item in c.drain()]
        now = q.stats()
        assert len(q) == 0
    whole = max(0, min(51, (left - 16384) // 960))
    assert got == [*bodies[:whole], *bodies[51:], b"after"]
    assert now.lost_items == 51 - whole
    assert bool(losses) == (whole < 51)
