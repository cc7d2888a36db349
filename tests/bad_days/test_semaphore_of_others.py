"""Goal: processes that do not sleep on one semaphore are told so, once, and what to do about it.

Method: children in mount namespaces with a /dev/shm of their own, and semaphores that are unlinked
while they are used, before somebody opens the queue again. Each child counts what its handles log.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import mpqueue
from mpqueue import semaphore
from rig import Child, in_other_shm, run

pytest.importorskip("posix_ipc")

WARNED = """
import logging
from mpqueue.cli import doctor
told = []
class Keep(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
logging.getLogger("mpqueue").addHandler(Keep())
def say_told():
    say(len(told))
    for text in told:
        say(text)
def say_advice():
    (found,) = [advice for advice in doctor.examine(os.fsdecode(args[0]))
                if advice.topic == "semaphore"]
    say(found.level, found.text)
"""

TALK = (
    WARNED
    + """
q = mpqueue.Queue(args[0], durability="none")
say("open")
while word := listen():
    if word == "put":
        q.put(args[1])
        q.flush()
        say("put")
    elif word == "get":
        with q.consumer() as c, c.reserve(timeout=60) as item:
            body = item.body.decode()
        say(body)
    elif word == "told":
        say_told()
    else:
        say_advice()
q.close()
"""
)

ADVICE = ("same /dev/shm", "--ipc=container:NAME", "64 ms")


def _ask(child: Child, *words: str) -> str:
    for word in words:
        child.tell(word)
    return child.hear()


def _told(child: Child) -> list[str]:
    return [child.hear() for _ in range(int(_ask(child, "told")))]


def _started(stack: contextlib.ExitStack, path: Path, name: str, *prefix: str) -> Child:
    child = stack.enter_context(Child(TALK, path, name, prefix=prefix))
    assert child.hear() == "open"
    return child


def _end(*children: Child) -> None:
    for child in children:
        child.tell()
        child.ends()


def _advises(text: str, path: Path | None) -> None:
    for word in ADVICE:
        assert word in text
    assert path is None or str(path) in text


def test_another_dev_shm_is_told_once_where_it_is_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with contextlib.ExitStack() as stack:
        first = _started(stack, path, "first")
        second = _started(stack, path, "second", *in_other_shm())
        third = _started(stack, path, "third")  # of the first one's world
        for giver, name, taker in ((first, "first", second), (second, "second", first)):
            for _ in range(3):
                assert _ask(giver, "put") == "put"
            assert [_ask(taker, "get") for _ in range(3)] == [name] * 3
        (text,) = _told(second)
        _advises(text, path)
        assert _told(first) == _told(third) == []
        assert _ask(first, "doctor").startswith("ok /mpq-")
        advice = _ask(second, "doctor")
        assert advice.startswith("warning /mpq-")
        _advises(advice, None)
        _end(first, second, third)
    mpqueue.destroy(path)


@pytest.mark.parametrize("others", ["live", "are gone"])
def test_a_semaphore_made_anew_is_told_while_others_live(tmp_path: Path, others: str) -> None:
    path = tmp_path / "spool"
    with contextlib.ExitStack() as stack:
        first = _started(stack, path, "first")
        assert _ask(first, "put") == "put"
        with mpqueue.Queue(path) as q:
            name = q.gate_name
        if others == "are gone":
            _end(first)
        assert semaphore.unlink(name)
        second = _started(stack, path, "second")
        assert _ask(second, "get") == "first"
        if others == "live":
            (text,) = _told(second)
            _advises(text, path)
            assert "removed" in text
            assert _ask(second, "doctor").startswith("warning")
            assert _told(first) == []
            assert _ask(first, "put") == "put"
            assert _ask(second, "get") == "first"
            _end(first)
        else:
            assert _told(second) == []
            assert _ask(second, "doctor").startswith("ok")
            third = _started(stack, path, "third")
            assert _told(third) == []
            _end(third)
        _end(second)
        # The next to be alone begins anew.
        last = _started(stack, path, "last")
        assert _told(last) == []
        _end(last)
    mpqueue.destroy(path)


INHERIT = (
    WARNED
    + """
q = mpqueue.Queue(args[0], durability="none")
if os.fork() == 0:
    try:
        say("child")
        listen()
        for _ in range(2):
            q.put(b"from the child")
            q.flush()
        say_told()
        q.close()
    finally:
        os._exit(0)
q.close()
say("parent")
os.wait()
"""
)


def test_a_forked_child_finds_another_semaphore_than_it_inherited(tmp_path: Path) -> None:
    """Before its first call it keeps nobody out: somebody was alone, and made one anew."""
    path = tmp_path / "spool"
    with Child(INHERIT, path) as heir:
        assert {heir.hear(), heir.hear()} == {"child", "parent"}
        with mpqueue.Queue(path) as q:
            name = q.gate_name
        assert semaphore.unlink(name)
        with mpqueue.Queue(path) as q:
            heir.tell()
            assert heir.hear() == "1"
            _advises(heir.hear(), path)
            assert len(q) == 2
        heir.ends()
    mpqueue.destroy(path)


HIDDEN = (
    WARNED
    + """
from mpqueue import semaphore
semaphore._file = lambda name: ""
with mpqueue.Queue(args[0]) as a:
    semaphore.unlink(a.gate_name)
    with mpqueue.Queue(args[0]) as b:
        b.put(b"x")
        b.flush()
        say_advice()
say_told()
"""
)


def test_where_the_file_is_hidden_nothing_is_compared(tmp_path: Path) -> None:
    lines = run(HIDDEN, tmp_path / "spool")
    assert lines[0].startswith("ok")
    assert lines[1:] == ["0"]
    mpqueue.destroy(tmp_path / "spool")
