"""Goal: what is no regular file in place of a queue's file is refused by whoever only looks.

Method: each kind of thing under each name. A FIFO once was waited for until somebody wrote to it;
a symbolic link was followed out of the directory.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from mpqueue import metrics
from mpqueue.cli.doctor import examine
from mpqueue.cli.top import look_well
from mpqueue.reader import verify


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def _link(path: Path) -> None:
    path.symlink_to("../elsewhere")


KINDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "fifo": ("a FIFO", os.mkfifo),
    "socket": ("a socket", _socket),
    "directory": ("a directory", Path.mkdir),
    "link": ("a symbolic link", _link),
    "link to nothing": ("a symbolic link", lambda path: path.symlink_to("nowhere")),
}


def _examine(path: Path) -> None:
    list(examine(str(path)))


def _top(path: Path) -> None:
    look_well(str(path))


def _export(path: Path) -> None:
    with mpqueue.inspect(path) as view:
        list(view.items())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["meta", "control", "cursor", "keys"])
def test_it_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    spool = tmp_path / "spool"
    with mpqueue.Queue(spool, key_window=10) as q:
        q.put(b"x", key="1")
        q.consumer().close()
    shutil.move(spool / name, tmp_path / "elsewhere")
    text, make = KINDS[kind]
    make(spool / name)
    looks: list[Callable[[Path], object]] = [verify, _export, _examine, _top]
    for look in looks if name != "keys" else [verify]:
        with pytest.raises(mpqueue.FormatError, match=text) as refused:
            look(spool)
        assert str(refused.value).startswith(f"{spool / name}: ")
    if name != "keys":
        (reading,) = metrics.read_all([spool])
        assert text in str(reading)
    os.rename(tmp_path / "elsewhere", tmp_path / "kept")
    if kind == "directory":
        (spool / name).rmdir()
    else:
        (spool / name).unlink()
    shutil.move(tmp_path / "kept", spool / name)
    assert not verify(spool).damage


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spool = tmp_path / "spool"
    with mpqueue.Queue(spool) as q:
        q.put(b"x")
    (segment,) = spool.glob("segment-*1")
    shutil.move(segment, tmp_path / "elsewhere")
    KINDS[kind][1](segment)
    _export(spool)
    assert verify(spool).damage
