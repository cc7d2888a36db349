"""Goal: `mpqueue exec` runs its command for each item and does with it what the exit status says.

Method: the real program with real commands; what they wrote, the queue and its dead letters tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from exec_rig import EXEC, Gate, Rig, alive, await_end_of, gate, rig, until_said
from mpqueue import layout
from mpqueue.cli import main

__all__ = ["gate", "rig"]

CONTRACT = """
read what
echo $what $MPQUEUE_ATTEMPT >>ran
case $what in
    twice) test $MPQUEUE_ATTEMPT = 2 ;;
    later) [ -e mark ] || { touch mark; exit 75; } ;;
    data) echo not this one >&2; exit 65 ;;
    hundred) exit 100 ;;
    never) echo no luck >&2; exit 3 ;;
    killed) kill -KILL $$ ;;
esac
"""


def test_the_exit_status_decides(rig: Rig) -> None:
    words = ["ok", "twice", "later", "data", "hundred", "never", "killed", "last"]
    rig.q.put_many([word.encode() for word in words])
    said = rig.run("--max-attempts", 3, "--backoff", "1ms", "--", "sh", "-c", CONTRACT, code=9)
    ran = rig.lines("ran")
    assert ran.count("ok 1") == ran.count("last 1") == ran.count("data 1") == 1
    assert [line for line in ran if "twice" in line] == ["twice 1", "twice 2"]
    assert [line for line in ran if "later" in line] == ["later 1"] * 2, "75 does not count"
    assert sorted(rig.letters()) == [
        (b"data", "exit status 65: not this one", 1),
        (b"hundred", "exit status 100", 1),
        (b"killed", "killed by SIGKILL", 3),
        (b"never", "exit status 3: no luck", 3),
    ]
    assert "item 6: exit status 3, attempt 1 of 3; again in 1.0 ms\n" in said
    assert "item 3: exit status 75; again in 1.0 ms\n" in said
    assert said.endswith("mpqueue: 4 done, 7 failed attempts, 4 dead letters\n")
    assert said.count("no luck\n") == 3, "what commands say is passed on"
    assert len(rig.q) == 0


def test_without_a_backoff_it_comes_again_at_once_and_five_times(rig: Rig) -> None:
    rig.q.put_many([b"never", b"ok"])
    rig.run("--", "sh", "-c", CONTRACT, code=9)
    assert rig.lines("ran") == [*(f"never {n}" for n in range(1, 6)), "ok 1"]
    assert rig.letters() == [(b"never", "exit status 3: no luck", 5)]


@pytest.mark.parametrize(("own", "attempts"), [(None, 2), (1, 1), (2, 2), (7, 2)])
def test_the_lesser_of_the_two_bounds_counts(rig: Rig, own: int | None, attempts: int) -> None:
    rig.q.set_options(max_attempts=2)
    rig.q.put(b"never")
    rig.run(*([] if own is None else ["--max-attempts", own]), "--", "sh", "-c", CONTRACT, code=9)
    letter = rig.q.dead.peek()
    assert letter is not None
    assert letter.attempts == len(rig.lines("ran")) == attempts
    if attempts == 2:  # the queue's own way, with its history
        assert (letter.reason, letter.last_failure) == ("attempts", "exit status 3: no luck")
    else:
        assert letter.reason == "exit status 3: no luck"


def test_a_command_is_told_of_its_item_and_of_no_other(rig: Rig) -> None:
    headers = {"content-type": "text/x", "Content.Type": "alike", "nul": "a\0b", "g": "gr\u00fcn"}
    rig.q.put(b"x", headers=headers)
    (record,) = mpqueue.inspect(rig.q.path).items()
    stale = {"MPQUEUE_H_OLD": "1", "MPQUEUE_KEY": "old", "MPQUEUE_SEQ": "99", "OTHER": "kept"}
    rig.run("--", "sh", "-c", "env -0 >env", env={**os.environ, **stale})
    told = dict(line.split("=", 1) for line in (rig.where / "env").read_text().split("\0") if line)
    assert (told["OTHER"], len(told.pop("MPQUEUE_EXEC"))) == ("kept", 32)
    assert {name: value for name, value in told.items() if name.startswith("MPQUEUE_")} == {
        "MPQUEUE_ID": record.id,
        "MPQUEUE_SEQ": "1",
        "MPQUEUE_ATTEMPT": "1",
        "MPQUEUE_ENQUEUED_AT": f"{record.enqueued_at:.6f}",
        "MPQUEUE_SOURCE": rig.q.path,
        "MPQUEUE_H_CONTENT_TYPE": "text/x",
        "MPQUEUE_H_G": "gr\u00fcn",
        "MPQUEUE_HEADERS": '{"content-type": "text/x", "Content.Type": "alike", '
        '"nul": "a\\u0000b", "g": "gr\u00fcn"}',
    }


def test_a_key_is_told(tmp_path: Path) -> None:
    with mpqueue.Queue(tmp_path / "queue", key_window=10) as q:
        q.put(b"x", key="order-17")
        rig = Rig(q, tmp_path)
        rig.run("--", "sh", "-c", 'echo "$MPQUEUE_KEY" >key')
        rig.close()
    assert rig.lines("key") == ["order-17"]
    mpqueue.destroy(tmp_path / "queue")


def test_the_body_is_its_input_as_it_is(rig: Rig) -> None:
    big = bytes(range(256)) * 4096
    rig.q.put_many([b"", b"no newline", big, big], atomic=False)
    body = 'case $MPQUEUE_SEQ in 4) exit 0;; *) cat >"body$MPQUEUE_SEQ";; esac'
    said = rig.run("--", "sh", "-c", body)  # the fourth one does not even read it
    assert [(rig.where / f"body{n}").read_bytes() for n in (1, 2, 3)] == [b"", b"no newline", big]
    assert said == "mpqueue: 4 done, 0 failed attempts, 0 dead letters\n"


def test_so_many_run_at_once_and_no_more_is_taken(rig: Rig, gate: Gate) -> None:
    rig.q.put_many([b"x"] * 5)
    process = rig.start("--until-empty", "-j", 3, "--", *gate.command)
    assert sorted(gate.arrival().seq for _ in range(3)) == [1, 2, 3]
    assert rig.q.stats().reserved_items == 3
    gate.let_go()
    assert gate.arrival().seq == 4
    gate.let_go(4)
    assert process.wait() == 0
    assert len(rig.q) == 0


def test_one_that_waits_for_its_next_attempt_holds_up_no_other(rig: Rig) -> None:
    """Given back by a signal it has had an attempt, and what it failed of is known."""
    rig.q.set_options(max_attempts=2)
    rig.q.put_many([b"never", b"ok", b"ok"])
    process = rig.start("--backoff", "1h", "--", "sh", "-c", CONTRACT)
    assert b"attempt 1 of 2; again in 60 min" in until_said(process, b"item 1")
    rig.q.put(b"last")
    while "last 1" not in rig.lines("ran"):
        assert process.poll() is None
    process.terminate()
    _, said = process.communicate()
    assert (process.returncode, said.splitlines()[-1]) == (
        143,
        b"mpqueue: 3 done, 1 failed attempt, 0 dead letters",
    )
    rig.run("--", "sh", "-c", CONTRACT, code=9)
    assert [line for line in rig.lines("ran") if "never" in line] == ["never 1", "never 2"]


def test_the_window_of_acks_is_no_deadlock(tmp_path: Path) -> None:
    """It ends what can be taken while all that is in hand waits."""
    with mpqueue.Queue(tmp_path / "queue", ack_window=64, durability="none") as q:
        q.put_many([b"x"] * 100)
        rig = Rig(q, tmp_path)
        command = 'echo $MPQUEUE_SEQ >>ran; [ "$MPQUEUE_ATTEMPT" = 2 ]'
        said = rig.run("-j", 4, "--backoff", "300ms", "--", "sh", "-c", command)
        rig.close()
        assert sorted(map(int, rig.lines("ran"))) == sorted([*range(1, 101)] * 2)
        assert said.endswith("mpqueue: 100 done, 100 failed attempts, 0 dead letters\n")
    mpqueue.destroy(tmp_path / "queue")


def test_a_timeout_ends_the_whole_group(rig: Rig) -> None:
    rig.q.put_many([b"deaf", b"obeys"])
    command = """
    echo $$ >>groups
    read what
    if [ $what = deaf ]; then trap '' TERM; else trap 'echo told >told; exit 0' TERM; fi
    sh -c "trap '' TERM; exec sleep 1000" & wait; wait; sleep 1000
    """
    words = ["--timeout", "1s", "--kill-after", "1s", "--max-attempts", 1, "-j", 2]
    rig.run(*words, "--", "sh", "-c", command, code=9)
    assert {reason for _, reason, _ in rig.letters()} == {"took longer than 1.0 s"}
    assert rig.lines("told") == ["told"], "SIGTERM came first; its status 0 came too late"
    for group in map(int, rig.lines("groups")):
        await_end_of(group)


def test_what_a_command_left_running_is_its_own_affair(rig: Rig) -> None:
    """It may hold stderr for as long as it likes."""
    rig.q.put(b"x")
    rig.run("--", "sh", "-c", "sleep 1000 & echo $! >left", stdout=subprocess.DEVNULL)
    (left,) = rig.lines("left")
    os.kill(int(left), 9)


def test_a_lease_is_extended_while_a_command_runs_and_while_it_waits(rig: Rig) -> None:
    rig.q.set_options(lease_timeout=2.0)
    rig.q.put_many([b"slow", b"fails"])
    command = """
    read what; echo $what $MPQUEUE_ATTEMPT >>ran
    if [ $what = slow ]; then sleep 2.4; else test $MPQUEUE_ATTEMPT = 2; fi
    """
    rig.run("-j", 2, "--backoff", "2.4s", "--", "sh", "-c", command)
    assert sorted(rig.lines("ran")) == ["fails 1", "fails 2", "slow 1"]
    assert rig.q.stats().leases_expired == 0


def test_a_sealed_queue_is_drained_and_ends_it(rig: Rig, gate: Gate) -> None:
    rig.q.put(b"x")
    process = rig.start("--", *gate.command)
    gate.arrival()
    rig.q.put(b"y")
    rig.q.seal()
    gate.let_go(2)
    assert gate.arrival().seq == 2
    assert process.wait() == 0


def _untouched(rig: Rig, item_attempts: int = 0) -> None:
    with rig.q.consumer() as consumer:
        item = consumer.peek()
        assert item is not None
        assert item.attempts == item_attempts


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "there is no command"),
        (["--"], "there is no command"),
        (["--", ""], "no such command"),
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["--", "/dev/null"], "may not be run"),
        (["true"], "-- is to stand before the command"),
        (["-j", "0", "--", "true"], "argument -j"),
        (["--max-attempts", "0", "--", "true"], "argument --max-attempts"),
        (["--backoff", "1s,-1s", "--", "true"], "argument --backoff"),
        (["--backoff", "", "--", "true"], "argument --backoff"),
        (["--timeout", "0", "--", "true"], "argument --timeout"),
        (["--kill-after", "soon", "--", "true"], "argument --kill-after"),
    ],
)
def test_what_cannot_be_is_refused_before_an_item_is_taken(
    rig: Rig, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.q.put(b"x")
    code = 0
    try:
        code = main(["exec", rig.q.path, *words])
    except SystemExit as end:  # argparse's own
        code = int(str(end.code))
    assert code == 2
    assert text in capsys.readouterr().err
    _untouched(rig)


def test_the_queue_that_is_not_there_and_the_one_that_is_taken(rig: Rig, tmp_path: Path) -> None:
    assert subprocess.run([*EXEC, tmp_path / "none", "--", "true"], stderr=-3).returncode == 7
    with rig.q.consumer():
        rig.run("--", "true", code=4)


def test_the_path_may_come_from_the_environment(rig: Rig) -> None:
    rig.q.put(b"x")
    environ = {**os.environ, "MPQUEUE_PATH": rig.q.path}
    command = ["sh", "-c", 'cat >took; echo "$@" >>took', "name", "-j", "--", "--help"]
    words = [*EXEC, "--until-empty", "--", *command]
    subprocess.run(words, env=environ, cwd=rig.where, check=True)
    assert rig.lines("took") == ["x-j -- --help"]


@pytest.mark.parametrize("status", [126, 127])
def test_a_command_that_cannot_be_run_does_not_burn_the_queue(rig: Rig, status: int) -> None:
    rig.q.put_many([b"x"] * 3)
    said = rig.run("--", "sh", "-c", f"echo $MPQUEUE_SEQ >>ran; exit {status}", code=2)
    assert rig.lines("ran") == ["1"]
    assert f"exit status {status}, which means that it cannot be run; item 1 stays" in said
    _untouched(rig)


def test_a_command_that_vanishes_does_not_burn_the_queue(rig: Rig) -> None:
    script = rig.where / "script"
    script.write_text("#!/bin/sh\nrm script\n")
    script.chmod(0o700)
    rig.q.put_many([b"x"] * 3)
    assert "No such file or directory; item 2 stays in the queue" in rig.run("--", script, code=2)
    _untouched(rig)


def test_headers_that_no_environment_holds_fail_their_own_item_only(rig: Rig) -> None:
    rig.q.put(b"x", headers={"large": "\1" * 60_000})
    rig.q.put(b"y")
    said = rig.run("--max-attempts", 1, "--", "sh", "-c", "cat >>ran", code=9)
    assert "item 1: cannot be started: Argument list too long, attempt 1 of 1" in said
    assert rig.lines("ran") == ["y"]


def test_a_command_inherits_what_exec_does_and_nothing_of_its_own(rig: Rig) -> None:
    rig.q.put(b"x")
    reading, writing = os.pipe()
    script = """
import contextlib, os
for number in range(3, 100):
    with contextlib.suppress(OSError):
        os.fstat(number)
        print(number, file=open("open", "a"))
"""
    rig.run("--", sys.executable, "-c", script, pass_fds=[reading])
    os.close(reading)
    os.close(writing)
    assert rig.lines("open") == [str(reading)]


def test_damage_is_counted_and_passed(rig: Rig) -> None:
    rig.q.put_many([b"one", b"two", b"three"])
    with mpqueue.inspect(rig.q.path) as view:
        record = list(view.items())[1]
    with (Path(rig.q.path) / layout.segment_name(record.generation)).open("r+b") as file:
        file.seek(record.offset + layout.FRAME_HEADER)
        file.write(b"!!!")
    said = rig.run("--", "sh", "-c", "cat >>ran; echo >>ran", code=5)
    assert rig.lines("ran") == ["one", "three"]
    assert "2 done" in said


def test_dead_letters_that_take_nothing_end_it(rig: Rig) -> None:
    """What cannot be moved stays, and has had its attempts."""
    rig.q.put(b"first")
    rig.run("--", "sh", "-c", "exit 65", code=9)
    dead = rig.q.dead.queue
    assert dead is not None
    dead.set_options(capacity=1)
    rig.q.put(b"second")
    assert "full" in rig.run("--", "sh", "-c", "exit 65", code=6)
    _untouched(rig, 1)
    dead.set_options(capacity=None)
    rig.run("--", "sh", "-c", "exit 65", code=9)
    assert [body for body, _, _ in rig.letters()] == [b"first", b"second"]


def test_an_encrypted_queue(tmp_path: Path) -> None:
    """The command gets plaintext; what it says of it does not go with a letter, which is plain."""
    pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
    (tmp_path / "keys").write_text(f"1 {'17' * 32}\n")
    (tmp_path / "other").write_text(f"1 {'18' * 32}\n")
    path = tmp_path / "queue"
    put = [sys.executable, "-P", "-m", "mpqueue", "put", path, "--key-file", tmp_path / "keys"]
    subprocess.run(put, input=b"secret\n", check=True, stderr=subprocess.DEVNULL)
    with mpqueue.Queue(path, raw=True) as q:
        q.put(b"not encrypted at all")
        rig = Rig(q, tmp_path)
        rig.run("--", "true", code=7)
        rig.run("--key-file", "other", "--", "true", code=7)
        command = "cat >took; cat took >&2; exit 1"
        words = ["--key-file", "keys", "--max-attempts", 1]
        said = rig.run(*words, "--", "sh", "-c", command, code=8)
        rig.close()
        assert rig.lines("took") == ["secret"]
        assert "secret" in said
        assert [reason for _, reason, _ in rig.letters()] == ["exit status 1", "cannot be decoded"]
    mpqueue.destroy(path)


def test_who_does_not_read_stderr_holds_up_commands_but_no_deadline(rig: Rig) -> None:
    rig.q.put(b"x")
    words = ["--timeout", "1s", "--max-attempts", 1, "--", "sh", "-c", "yes >&2"]
    process = rig.start("--until-empty", *words)
    while len(rig.q.dead) == 0:
        assert process.poll() is None
    _, said = process.communicate()
    assert process.returncode == 9
    assert said.startswith(b"y\ny\n")
    assert b"\nmpqueue: 0 done, 1 failed attempt, 1 dead letter\n" in said
    ((_, reason, _),) = rig.letters()
    assert reason.startswith("took longer than 1.0 s: y y")
    assert len(reason) < 450


def test_who_does_not_read_stderr_does_not_fill_the_memory(rig: Rig) -> None:
    """What commands said is kept to a bound, and so nothing more is begun."""
    rig.q.put_many([b"x"] * 40)
    command = "head -c 60000 /dev/zero >&2; echo >>ran"
    process = rig.start("--until-empty", "--", "sh", "-c", command)
    quiet = 0
    while quiet < 50:
        assert process.poll() is None
        quiet = quiet + 1 if len(rig.lines("ran")) > 4 and len(alive(1, process.pid)) == 1 else 0
    assert len(rig.lines("ran")) < 20
    _, said = process.communicate()
    assert process.returncode == 0
    assert said.count(b"\0") == 40 * 60000


def test_talk_begins_its_own_line(rig: Rig) -> None:
    rig.q.put(b"x")
    said = rig.run("--max-attempts", 1, "--", "sh", "-c", "printf oops >&2; exit 9", code=9)
    assert said.splitlines()[:2] == [
        "oops",
        "mpqueue: item 1: exit status 9, attempt 1 of 1; a dead letter now",
    ]


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_stderr_may_be_closed_and_its_reader_gone(rig: Rig, how: str) -> None:
    rig.q.put_many([b"x"] * 3)
    reading, writing = os.pipe()
    os.close(reading)
    options: dict[str, object] = {"stderr": writing}
    if how == "closed":
        options = {"stderr": None, "preexec_fn": lambda: os.close(2)}
    rig.run("--", "sh", "-c", "echo talk >&2", **options)
    os.close(writing)
    assert len(rig.q) == 0
