"""Goal: more processes than the table of members holds, and paths of any bytes, just work.

Method: twelve processes on a table of four, some of them killed; paths with spaces, newlines and
bytes that are not UTF-8, through the API and the command line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from mpqueue import metrics
from rig import Child, drain

MEMBERS = 12
ITEMS = 200

JOIN = """
q = mpqueue.Queue(args[0])
say("open")
while True:
    word = listen()
    if word == "put":
        for n in range(int(args[2])):
            q.put(args[1] + b" %d" % n)
        say("done")
    elif word == "consume":
        with q.consumer() as c:
            say(*(item.body.split()[0].decode() for item in c.drain()))
            listen()
    else:
        break
q.close()
"""


def told(*words: object) -> str:
    """What the command line prints."""
    command = [sys.executable, "-P", "-m", "mpqueue", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_more_members_than_the_table_holds(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with (
        mpqueue.Queue(path, max_members=4, durability="none") as q,
        contextlib.ExitStack() as stack,
    ):
        children = [
            stack.enter_context(Child(JOIN, path, b"p%d" % p, ITEMS)) for p in range(MEMBERS)
        ]
        for child in children:
            assert child.hear() == "open"
        now = q.stats()
        assert (now.members, now.members_alive) == (4, 4), "13 are attached, 4 have an entry"
        assert len(q.members()) == 4
        assert metrics.read(path).values["members_alive"] == 4
        assert "4 handles or more" in told("doctor", path)
        assert json.loads(told("stats", path, "--json"))["members_alive"] == 4
        for child in children:
            child.tell("put")
        for child in children:
            assert child.hear() == "done"
        assert len(q) == q.stats().items_enqueued == MEMBERS * ITEMS
        # The consumer is a process that has no entry of its own; then it, too, is killed.
        assert not q.stats().consumer_attached
        children[-1].tell("consume")
        words = children[-1].hear().split()
        for now in (q.stats()._asdict(), metrics.read(path).values):
            assert (now["consumer_attached"], now["consumer_pid"]) == (True, 0)
        children[-1].tell("go on")
        assert sorted(words) == sorted(f"p{p}" for p in range(MEMBERS) for _ in range(ITEMS))
        for child in children[::2]:
            child.kill()
        for child in children[1::2]:
            child.tell("put")
            assert child.hear() == "done"
        # New processes take the entries of the dead.
        late = stack.enter_context(Child(JOIN, path, b"late", ITEMS))
        assert late.hear() == "open"
        assert late.pid in [member.pid for member in q.members() if member.alive]
        late.tell("put")
        assert late.hear() == "done"
        assert len(q) == (MEMBERS // 2 + 1) * ITEMS
        assert q.stats().items_enqueued == MEMBERS * ITEMS + (MEMBERS // 2 + 1) * ITEMS
        with pytest.raises(mpqueue.QueueInUse):
            mpqueue.destroy(path)
        for child in [*children[1::2], late]:
            child.tell("end")
            child.ends()
        now = q.stats()
        assert now.claim_gaps == now.lost_items == 0
    assert len(drain(path)) == (MEMBERS // 2 + 1) * ITEMS


def test_consumer_beyond_the_table_is_refused_and_named_busy(tmp_path: Path) -> None:
    """A holder without an entry of its own is still the holder; its pid may be unknown."""
    path = tmp_path / "spool"
    with (
        mpqueue.Queue(path, max_members=1, durability="none") as q,
        Child(
            "q = mpqueue.Queue(args[0]); c = q.consumer(); say('has'); listen(); q.close()", path
        ) as child,
    ):
        assert child.hear() == "has"
        with pytest.raises(mpqueue.ConsumerBusy) as busy:
            q.consumer()
        assert busy.value.pid in (-1, child.pid)
        child.kill()
        q.consumer(wait=60).close()


NAMES = [
    b"with space",
    b" leading and trailing ",
    b"new\nline",
    b"tab\tand 'quotes\" $HOME `id` *?[x]",
    b"not utf-8 \xff\xfe\x80",
    "snow \u2603 \U0001f4ee".encode(),
    b"-leading-dash",
    b"red \x1b[31m and a bell \a",
    b"x" * 200,
]
name = pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])


@name
def test_any_path_works(tmp_path: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    with mpqueue.Queue(path) as q:
        assert os.fsencode(q.path) == path
        q.put(b"x")
        assert len(repr(q).encode("utf-8", "surrogateescape")) > 0
    with mpqueue.Queue(Path(os.fsdecode(path)), create=False) as q, q.consumer() as c:
        assert c.take().body == b"x"
        with pytest.raises(mpqueue.QueueInUse) as refused:
            mpqueue.destroy(path)
        assert os.fsdecode(path) in str(refused.value)
    with mpqueue.inspect(os.fsdecode(path)) as view:
        assert list(view.items()) == []
    mpqueue.destroy(path)
    assert os.listdir(tmp_path) == []


@name
def test_any_path_works_on_the_command_line(tmp_path: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    command = [sys.executable, "-P", "-m", "mpqueue"]
    done = subprocess.run([*command, "put", path], input=b"one\ntwo\n", capture_output=True)
    assert (done.returncode, _obeyed(done.stderr)) == (0, b""), done.stderr
    done = subprocess.run([*command, "get", path, "-n", "2"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"one\ntwo\n"), done.stderr
    for verb in ("init", "stats", "verify", "doctor", "top", "repair"):
        once = ["--once"] if verb == "top" else []
        done = subprocess.run([*command, verb, path, *once], capture_output=True)
        assert done.returncode == 0, (verb, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        assert _obeyed(done.stdout + done.stderr) == b"", verb
    done = subprocess.run([*command, "peek", path + b"-"], capture_output=True)
    assert (done.returncode, _obeyed(done.stderr)) == (7, b""), done.stderr


def _obeyed(output: bytes) -> bytes:
    """What a terminal would obey, or could not read, of some output: names must not get there."""
    output.decode()
    return bytes(byte for byte in output if (byte < 32 and byte != 10) or byte == 127)


def test_path_longer_than_the_system_allows_is_an_oserror(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), tmp_path.joinpath(*["y" * 200] * 21)):
        with pytest.raises(OSError, match="directory: File name too long") as refused:
            mpqueue.Queue(path)
        assert refused.value.errno == errno.ENAMETOOLONG
        assert str(path)[:100] in str(refused.value)
    with pytest.raises(ValueError, match="null"):
        mpqueue.Queue(str(tmp_path) + "/a\0b")
    assert os.listdir(tmp_path) == []


def test_relative_path_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with mpqueue.Queue("spool", segment_size=1 << 16) as q:
        monkeypatch.chdir("/")
        for _ in range(200):
            q.put(bytes(1000))
        with q.consumer() as c:
            assert len(list(c.drain())) == 200
    assert (tmp_path / "spool" / "meta").exists()


def test_two_names_of_one_directory_are_one_queue(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "spool", target_is_directory=True)
    with mpqueue.Queue(tmp_path / "spool") as one, mpqueue.Queue(tmp_path / "link") as two:
        one.put(b"x")
        assert len(two) == 1
        with one.consumer(), pytest.raises(mpqueue.ConsumerBusy):
            two.consumer()
