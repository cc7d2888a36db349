"""Goal: a directory that may not be read or written is the system's error with advice, untouched.

Method: children that give up root for an ordinary user; a filesystem that is remounted read-only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import mpqueue
from mpqueue import semaphore
from rig import advises, drain, make, mount, need_root, run, tmpfs, untouched

NOBODY = 65534
MS_REMOUNT_RDONLY = 32 | 1

# Imported while the interpreter's own files can be read.
DROP = """
import fcntl, logging, posix_ipc
import mpqueue.reader, mpqueue.stats
os.setgid(65534)
os.setuid(65534)
def attempt(act):
    try:
        act()
    except Exception as error:
        say(type(error).__name__, getattr(error, "errno", None), str(error).partition("] ")[2])
    else:
        say("fine")
"""
ATTEMPTS = (
    DROP
    + """
attempt(lambda: mpqueue.Queue(args[0]))
attempt(lambda: mpqueue.Queue(args[0], create=False))
attempt(lambda: mpqueue.destroy(args[0]))
attempt(lambda: mpqueue.repair(args[0]))
attempt(lambda: mpqueue.inspect(args[0]).close())
"""
)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A queue whose parents everybody may enter."""
    need_root()
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    path = tmp_path / "spool"
    make(path, [b"precious"] * 3, durability="none")
    return path


def _check(lines: list[str], path: Path, expected: str, readable: bool) -> None:
    assert len(lines) == 5
    for line in lines[:4] if readable else lines:
        kind, number, text = line.split(" ", 2)
        assert (kind, number) == (expected, str(errno.EACCES))
        assert str(path) in text
    assert readable == (lines[4] == "fine")


def test_no_permission_at_all_is_an_oserror(spool: Path) -> None:
    with untouched(spool):
        lines = run(ATTEMPTS, spool)
    _check(lines, spool, "PermissionError", readable=False)
    for line in lines:
        assert "owner and mode" in line
    assert drain(spool) == [b"precious"] * 3


def test_files_that_may_only_be_read_can_be_inspected(spool: Path) -> None:
    spool.chmod(0o755)
    for file in spool.iterdir():
        file.chmod(0o644)
    with untouched(spool):
        lines = run(ATTEMPTS, spool)
    _check(lines, spool, "PermissionError", readable=True)
    assert drain(spool) == [b"precious"] * 3


def test_directory_that_may_not_be_written_makes_no_queue(tmp_path: Path, spool: Path) -> None:
    path = tmp_path / "plain"
    path.mkdir(mode=0o755)
    script = DROP + "attempt(lambda: mpqueue.Queue(args[0]))"
    with untouched(tmp_path):
        for target in (path, tmp_path / "new"):
            (line,) = run(script, target)
            assert line.startswith(f"PermissionError {errno.EACCES} {target}")
            assert "owner and mode" in line


def test_one_unreadable_file_fails_the_open_and_costs_nothing(spool: Path) -> None:
    """Unreadable is not damage: nothing is rebuilt, removed or counted as lost."""
    os.chown(spool, NOBODY, NOBODY)
    for file in spool.iterdir():
        os.chown(file, NOBODY, NOBODY)
    script = DROP + "attempt(lambda: mpqueue.Queue(args[0], create=False))"
    for name in ("meta", "control", "cursor", "segment-000000000001"):
        (spool / name).chmod(0)
        env = {"MPQ_BOOT_ID": "another"} if name.startswith("segment") else {}
        with untouched(spool):
            (line,) = run(script, spool, env=env)
        assert line.startswith(f"PermissionError {errno.EACCES} {spool}"), name
        assert "owner and mode" in line
        (spool / name).chmod(0o600)
    assert drain(spool) == [b"precious"] * 3


def test_segment_that_became_unreadable_is_not_lost(spool: Path) -> None:
    """A consumer that cannot open a segment says so; nothing is skipped."""
    path = spool.parent / "several"
    make(path, [b"%d" % n * 1000 for n in range(100)], durability="none")
    os.chown(path, NOBODY, NOBODY)
    for file in path.iterdir():
        os.chown(file, NOBODY, NOBODY)
    script = (
        DROP
        + """
q = mpqueue.Queue(args[0])
c = q.consumer()
os.chmod(args[1], 0)
for _ in range(3):
    attempt(lambda: c.reserve(0))
q.put(b"more")
os.chmod(args[1], 0o600)
item = c.reserve(0)
say(item.body == b"0" * 1000, item.seq, q.stats().lost_items)
c.close()
q.close()
"""
    )
    *failures, last = run(script, path, path / "segment-000000000001")
    assert len(failures) == 3
    for line in failures:
        assert line.startswith(f"PermissionError {errno.EACCES} {path}")
        assert "owner and mode" in line
    assert last == "True 1 0"
    assert drain(path) == [b"%d" % n * 1000 for n in range(100)] + [b"more"]


def test_read_only_filesystem_refuses_and_can_be_inspected(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 4 << 20) as disk:
        path = disk / "spool"
        make(path, [b"precious"] * 3)
        mount("tmpfs", disk, "tmpfs", MS_REMOUNT_RDONLY)
        with untouched(disk):
            for act in (mpqueue.Queue, mpqueue.destroy, mpqueue.repair):
                with pytest.raises(OSError, match="read-only") as refused:
                    act(path)
                assert refused.value.errno == errno.EROFS
                advises(refused.value, path, "inspect")
            with pytest.raises(OSError, match="read-only") as refused:
                mpqueue.Queue(disk / "new")
            assert refused.value.errno == errno.EROFS
            with mpqueue.inspect(path) as view:
                assert [item.body for item in view.items()] == [b"precious"] * 3
        mount("tmpfs", disk, "tmpfs", 32)
        assert drain(path) == [b"precious"] * 3


OWNER = (
    DROP
    + """
with mpqueue.Queue(args[0], segment_size=65536) as q, q.consumer() as c:
    for n in range(20):
        q.put(bytes(9000))
    say(len([c.take() for n in range(10)]))
"""
)


def test_what_root_makes_in_a_queue_is_its_owners(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root looks after a reboot, puts, consumes and repairs; the owner goes on as before."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    path = home / "spool"
    assert run(OWNER, path) == ["10"]
    for boot, act in enumerate(("stats", "work", "repair")):
        monkeypatch.setenv("MPQ_BOOT_ID", f"boot {boot}")
        if act == "repair":
            mpqueue.repair(path)
        else:
            with mpqueue.Queue(path) as q:
                gate = q.gate_name
                q.stats()
                if act == "work":
                    q.put_many([bytes(9000)] * 20, atomic=False)
                    with q.consumer() as c:
                        c.ack_many(c.reserve_many(15))
                        c.checkpoint()
        assert {file.stat().st_uid for file in path.rglob("*")} == {NOBODY}
        found = semaphore.inspect(gate)
        assert found is None or found.uid in (-1, NOBODY)
        assert run(OWNER, path) == ["10"]
