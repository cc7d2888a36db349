"""Goal: a full disk is a clean error, the queue is as it was, acks go on, and room lets puts go on.

Method: a small ext4 in a file behind a loop device and a small tmpfs, filled to the last byte at
different points of a queue's life. Everything runs in a child, so that a SIGBUS would be seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from rig import Child, drain, fingerprint, run, small_ext4, tmpfs

SIZE = 12 << 20

FILL = """
def fill(left=0):
    "Takes every byte of the filesystem but `left`; large pieces first."
    path = os.path.join(os.path.dirname(args[0]), b"filler")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    size = os.fstat(fd).st_size
    for piece in (1 << 20, 1 << 16, 1 << 12):
        while True:
            try:
                os.posix_fallocate(fd, size, piece)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
            size += piece
    if left:
        os.truncate(fd, size - left)
    os.close(fd)

def free():
    os.unlink(os.path.join(os.path.dirname(args[0]), b"filler"))

def no_space(act):
    try:
        act()
    except mpqueue.NoSpace as error:
        assert error.errno == errno.ENOSPC
        text = str(error)
        assert os.fsdecode(args[0]) in text and "free space" in text and "as it was" in text, text
        return
    raise AssertionError("it found room")

"""


@pytest.fixture(params=["ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small filesystem of its own."""
    with contextlib.ExitStack() as stack:
        if request.param == "ext4":
            yield stack.enter_context(small_ext4(tmp_path, SIZE))
        else:
            yield stack.enter_context(tmpfs(tmp_path / "small", SIZE))


policy = pytest.mark.parametrize("durability", ["none", "interval", "group", "sync"])


@policy
def test_full_disk_refuses_puts_acks_and_recovers(disk: Path, durability: str) -> None:
    path = disk / "spool"
    script = (
        FILL
        + """
q = mpqueue.Queue(args[0], segment_size=65536, durability=args[1].decode(), max_members=16)
c = q.consumer()
seqs = [q.put(b"%d" % n * 100) for n in range(20)]
fill()
try:
    while True:
        seqs.append(q.put(bytes(1000)))
except mpqueue.NoSpace as error:
    assert error.errno == errno.ENOSPC
    assert os.fsdecode(args[0]) in str(error) and "free space" in str(error), error
for _ in range(20):
    before = (len(q), q.stats().next_seq, sorted(os.listdir(args[0])))
    no_space(lambda: q.put(bytes(1000)))
    no_space(lambda: q.put_nowait(bytes(1000)))
    no_space(lambda: q.put_many([bytes(1000)] * 3))
    no_space(lambda: q.put(bytes(200_000)))
    assert before == (len(q), q.stats().next_seq, sorted(os.listdir(args[0])))
assert seqs == list(range(1, len(seqs) + 1))
assert not q.stats().poisoned and not q.stats().fault
# Acks work on the full disk, and are durable there.
for n in range(10):
    item = c.reserve(0)
    assert item.body == b"%d" % n * 100
    item.ack(durable=True)
q.flush()
c.checkpoint()
assert len(q) == len(seqs) - 10
say("full")
listen()
free()
for _ in range(200):
    seqs.append(q.put(bytes(1000)))
assert seqs == list(range(1, len(seqs) + 1))
assert len(q) == len(seqs) - 10
q.flush()
left = [item.body for item in c.drain()]
assert left[:10] == [b"%d" % n * 100 for n in range(10, 20)], len(left)
assert len(left) == len(seqs) - 10
s = q.stats()
assert (s.lost_items, s.claim_gaps, s.torn_items) == (0, 0, 0)
q.close()
"""
    )
    with Child(script, path, durability) as child:
        assert child.hear() == "full"
        child.tell()
        child.ends()
    assert drain(path) == []


def test_draining_a_full_disk_makes_room_by_itself(disk: Path) -> None:
    """Segments that the consumer frees are the room that the next puts need."""
    run(
        FILL
        + """
q = mpqueue.Queue(args[0], segment_size=65536, keep_segments=0, max_members=16)
c = q.consumer()
count = 0
for round in range(5):
    fill()
    put = []
    try:
        while True:
            put.append(q.put(b"%d" % count * 20))
            count += 1
    except mpqueue.NoSpace:
        pass
    assert put or round == 0 or count
    got = [item.body for item in c.drain()]
    c.checkpoint()
    if round == 0:
        free()
        for _ in range(200):
            q.put(bytes(1000))
            next(iter(c.drain()))
        c.checkpoint()
assert count > 100 and q.stats().lost_items == 0
q.close()
""",
        disk / "spool",
    )


def test_queue_is_not_half_made_on_a_full_disk(disk: Path) -> None:
    """From no room at all upwards: nothing is left behind, or a whole queue that opens."""
    run(
        FILL
        + """
import shutil
made = failed = 0
for left in range(0, 1_300_000, 1 << 15):
    fill(left)
    try:
        q = mpqueue.Queue(args[0], segment_size=65536, max_members=16, ack_window=1024)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert isinstance(error, mpqueue.NoSpace), error
        failed += 1
        if os.path.exists(args[0]):
            names = os.listdir(args[0])
            assert not [name for name in names if name.startswith((b"making", b"preparing"))]
        free()
        q = mpqueue.Queue(args[0], segment_size=65536, max_members=16, ack_window=1024)
    else:
        made += 1
        try:
            q.put(b"x" * 30)
        except mpqueue.NoSpace:
            assert len(q) == 0
        free()
    q.put(b"works")
    with q.consumer() as c:
        got = [item.body for item in c.drain()]
    assert got[-1] == b"works" and len(got) <= 2
    q.close()
    mpqueue.destroy(args[0])
assert made >= 2 and failed >= 2, (made, failed)
""",
        disk / "spool",
    )


OPENS: dict[str, tuple[str, bool]] = {
    "same boot": ("", True),
    "after a reboot": ("another", True),
    "without control": ("", False),
}


@pytest.mark.parametrize("case", OPENS)
def test_opening_on_a_full_disk_loses_nothing(
    disk: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens, or refuses with NoSpace and has touched nothing; with room it has everything."""
    path = disk / "spool"
    boot, with_control = OPENS[case]
    options = "segment_size=65536, max_members=16, ack_window=1024"
    run(
        f"""
q = mpqueue.Queue(args[0], {options})
for n in range(200):
    q.put(b"%d" % n * 100)
with q.consumer() as c:
    c.ack_many(c.reserve_many(10))
q.close()
""",
        path,
    )
    if not with_control:
        (path / "control").unlink()
    monkeypatch.setenv("MPQ_BOOT_ID", boot)
    before = fingerprint(path)
    lines = run(
        FILL
        + """
fill()
try:
    q = mpqueue.Queue(args[0])
except mpqueue.NoSpace as error:
    say("refused", error.strerror)
else:
    say("opened", len(q))
    c = q.consumer()
    assert c.reserve(0).body == b"10" * 100
    q.close()
free()
""",
        path,
    )
    if lines[0].startswith("refused"):
        assert str(path) in lines[0]
        assert "free space" in lines[0]
        assert fingerprint(path) == before
    else:
        assert lines[0] == "opened 190"
    assert drain(path) == [b"%d" % n * 100 for n in range(10, 200)]


def test_damage_on_a_full_disk_is_passed_without_quarantine(disk: Path) -> None:
    """The damaged bytes cannot be saved; that is counted, and the walk goes on."""
    path = disk / "spool"
    run(
        """
q = mpqueue.Queue(args[0], segment_size=65536, max_members=16)
for n in range(3):
    q.put(b"%d" % n * 10_000)
q.close()
""",
        path,
    )
    (segment,) = path.glob("segment-*1")
    data = segment.read_bytes()
    at = data.index(b"1" * 10_000) + 5_000
    with open(segment, "r+b") as file:
        file.seek(at)
        file.write(b"?")
    run(
        FILL
        + """
fill()
q = mpqueue.Queue(args[0])
c = q.consumer()
first = c.reserve(0)
assert first.body == b"0" * 10_000
try:
    c.reserve(0)
except mpqueue.Corrupt as error:
    assert error.lost_items == 1
else:
    raise AssertionError("damage was not told")
last = c.reserve(0)
assert last.body == b"2" * 10_000
c.ack_many([first, last])
s = q.stats()
assert (s.lost_items, s.corrupt_saved, s.corrupt_skipped, len(q)) == (1, 0, 1, 0), s
q.close()
free()
""",
        path,
    )
    assert drain(path) == []


@pytest.mark.parametrize("kills", [3])
def test_kill_on_a_full_disk_loses_nothing(disk: Path, kills: int) -> None:
    path = disk / "spool"
    script = (
        FILL
        + """
q = mpqueue.Queue(args[0], segment_size=65536, max_members=16)
fill()
n = 0
try:
    while True:
        n = q.put(bytes(1000))
except mpqueue.NoSpace:
    say("full", n)
while True:
    try:
        n = q.put(bytes(1000))
        say("more", n)
    except mpqueue.NoSpace:
        pass
"""
    )
    accepted = 0
    for _ in range(kills):
        with Child(script, path) as child:
            word, number = child.hear().split()
            assert word == "full"
            accepted = max(accepted, int(number))
            (disk / "filler").unlink()
            word, number = child.hear().split()
            accepted = max(accepted, int(number))
            child.kill()
            rest = child.process.stdout
            assert rest is not None
            for line in rest.read().splitlines():
                if line.count(" ") == 1 and line.startswith("more "):
                    accepted = max(accepted, int(line.split()[1]))
    delivered = len(drain(path))
    with mpqueue.Queue(path) as queue:  # a seq whose claimant was killed is a gap
        assert delivered + queue.stats().claim_gaps >= accepted > 0
    assert not [name for name in os.listdir(path) if name.startswith("preparing")]
