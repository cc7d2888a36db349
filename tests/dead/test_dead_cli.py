"""Goal: `mpqueue dead` does what its page says, with its exit codes. Method: the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from mpqueue.cli import common
from mpqueue.cli.doctor import examine


@pytest.fixture
def graves(spool: Path) -> Path:
    """Three dead letters: 1 "attempts", 2 and 3 "rejected"."""
    with mpqueue.Queue(spool, max_attempts=1) as q:
        q.put_many([b"one", b"two \xff", b"three"])
        with q.consumer() as c:
            c.reserve().nack(reason="no user")
            for item in c.drain():
                item.dead()
    return spool


def run(*words: object, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", "dead", *map(str, words)],
        capture_output=True,
        text=True,
        env={**env, "PATH": ""},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_list_and_show(graves: Path) -> None:
    lines = run("list", graves).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert "'attempts'  'no user'  'one'" in lines[0]
    (one, two, _) = map(json.loads, run("list", graves, "--json").splitlines())
    assert (one["reason"], one["attempts"], one["last_failure"]) == ("attempts", 1, "no user")
    assert (two["body_base64"], two["headers"], two["first_failure"]) == ("dHdvIP8=", {}, None)
    assert len(run("list", graves, "--reason", "rejected").splitlines()) == 2
    assert json.loads(run("show", graves, 3, "--json"))["body"] == "three"
    assert "no user" in run("show", graves, 1)
    assert run("show", graves, 99, code=common.EMPTY) == ""
    assert json.loads(run("show", 3, "--json", MPQUEUE_PATH=str(graves)))["seq"] == 3


def test_retry_and_drop(graves: Path) -> None:
    for action in ("retry", "drop"):
        run(action, graves, code=common.USAGE)
        run(action, graves, "--reason", "unknown", code=common.EMPTY)
    run("retry", graves, "--all", "--older", "1s", code=common.USAGE)
    assert json.loads(run("retry", graves, 1, "--json")) == {"put_back": 1}
    assert json.loads(run("drop", graves, "--keep", 1, "--json")) == {"dropped": 1}
    assert json.loads(run("drop", graves, "--older", "1h", "--json", code=1)) == {"dropped": 0}
    with mpqueue.Queue(graves) as q:
        assert (len(q), [letter.body for letter in q.dead]) == (1, [b"three"])
        with q.dead.queue.consumer():
            run("retry", graves, "--all", code=common.BUSY)
        q.set_options(capacity=1)
        run("retry", graves, "--all", code=common.FULL)
        q.seal()
        run("retry", graves, "--all", code=common.SEALED)
        run("drop", graves, "--all")
        assert len(q.dead) == 0


def test_destroy_wants_a_yes_for_dead_letters(graves: Path) -> None:
    """It once removed them with a queue that was empty but for them."""

    def destroy(*words: str, code: int) -> str:
        command = [sys.executable, "-P", "-m", "mpqueue", "destroy", str(graves), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stderr

    assert "holds 3 dead letters; destroy --yes" in destroy(code=common.USAGE)
    with mpqueue.Queue(graves) as q:
        q.put(b"x")
    assert "holds 1 item and 3 dead letters; destroy --yes" in destroy(code=common.USAGE)
    with mpqueue.Queue(graves) as q:
        assert (len(q), len(q.dead)) == (1, 3)
        with q.consumer() as c:
            assert c.take().body == b"x"
        q.dead.drop(limit=2)
    assert "holds 1 dead letter; destroy --yes" in destroy(code=common.USAGE)
    destroy("--yes", code=common.OK)
    assert not graves.exists()
    with mpqueue.Queue(graves, max_attempts=1) as q, q.consumer() as c:
        q.put(b"x")
        c.reserve().dead()
        q.dead.purge()
    destroy(code=common.OK)
    assert not graves.exists()


def test_doctor_tells_of_dead_letters(graves: Path) -> None:
    def dead() -> list[tuple[str, str]]:
        return [
            (entry.level, entry.text) for entry in examine(str(graves)) if entry.topic == "dead"
        ]

    ((level, text),) = dead()
    assert (level, text[:14]) == ("warning", "3 dead letters")
    run("drop", graves, "--all")
    assert dead() == [("ok", "no dead letters")]
    mpqueue.destroy(graves)
    mpqueue.Queue(graves).close()
    assert dead() == []
    (graves / "dead").write_text("mine")
    assert [level for level, _ in dead()] == ["warning"]


def test_a_queue_without_dead_letters_and_no_queue(spool: Path) -> None:
    run("list", spool, code=common.REFUSED)
    mpqueue.Queue(spool).close()
    for words in (["list"], ["show"], ["retry", "--all"], ["drop", "--all"]):
        run(words[0], spool, *words[1:], code=common.EMPTY)
    assert not (spool / "dead").exists()
