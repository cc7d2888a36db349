"""Goal: a destroy may be killed at any moment; the path is free for the next queue all the same.

Method: directories as a killed destroyer leaves them, one that still works, and real races.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from pathlib import Path

import pytest

import mpqueue
from mpqueue import layout
from rig import Child, drain, make, until


def _half_destroyed(path: Path, gone: int) -> None:
    """As a destroyer leaves it that was killed before its (gone + 1)th removal."""
    make(path, [b"1", b"2"])
    (path / "corrupt").mkdir()
    (path / "corrupt" / "00000000000000000007-segment-000000000001").write_bytes(b"x")
    (path / "foreign").write_bytes(b"somebody's")
    os.rename(path / "meta", path / "destroyed")
    for file in sorted(path.glob("[cs]*[lrt0-9]"))[:gone]:
        if file.is_file():
            file.unlink()


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_killed_destroy_is_finished_by_the_next(tmp_path: Path, gone: int) -> None:
    path = tmp_path / "spool"
    _half_destroyed(path, gone)
    with pytest.raises(mpqueue.NotAQueue):
        mpqueue.Queue(path, create=False)
    mpqueue.destroy(path)
    assert [file.name for file in path.iterdir()] == ["foreign"]
    with pytest.raises(mpqueue.NotAQueue):
        mpqueue.destroy(path)


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_killed_destroy_is_in_nobodys_way(tmp_path: Path, gone: int) -> None:
    path = tmp_path / "spool"
    _half_destroyed(path, gone)
    with mpqueue.Queue(path) as q:
        assert len(q) == 0
        assert q.put(b"new") == 1
    assert (path / "foreign").read_bytes() == b"somebody's"
    assert not (path / "destroyed").exists()
    assert not (path / "corrupt").exists()
    assert drain(path) == [b"new"]


def test_a_new_queue_waits_for_a_living_destroyer(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    _half_destroyed(path, 1)
    with (path / "destroyed").open("r+b") as gate:
        fcntl.lockf(gate, fcntl.LOCK_EX, 1, layout.BYTE_GATE)
        with Child("say('here'); q = mpqueue.Queue(args[0]); say(q.put(b'new'))", path) as child:
            assert child.hear() == "here"
            until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "S")
            for file in path.iterdir():
                assert file.name != "meta"
                if file.is_file():
                    file.unlink()
            fcntl.lockf(gate, fcntl.LOCK_UN, 1, layout.BYTE_GATE)
            assert child.hear() == "1"
            child.ends()
    assert drain(path) == [b"new"]


def test_opening_beside_destroying_makes_or_opens(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    script = """
for n in range(150):
    with mpqueue.Queue(args[0], segment_size=65536, durability="none") as q:
        q.put(b"%d" % n)
say("done")
"""
    with Child(script, path) as child:
        while not select.select([child.process.stdout], [], [], 0.001)[0]:  # others want in, too
            with contextlib.suppress(mpqueue.QueueInUse, mpqueue.NotAQueue):
                mpqueue.destroy(path)
        assert child.hear() == "done"
        child.ends()
