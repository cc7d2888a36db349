"""Goal: however `mpqueue exec` is ended, no command outlives it and no item is lost or miscounted.

Method: signals at commands that stand at a gate; SIGKILL; what the next one is handed tells.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from pathlib import Path

import pytest

from exec_rig import Gate, Rig, alive, await_end_of, gate, rig, signal_until_ended, until_said
from mpqueue.cli import exec_worker, main

__all__ = ["gate", "rig"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_lets_commands_end_and_takes_nothing_more(
    rig: Rig, gate: Gate, number: signal.Signals
) -> None:
    rig.q.put_many([b"x"] * 3)
    process = rig.start("-j", 2, "--", *gate.command)
    assert {gate.arrival().seq, gate.arrival().seq} == {1, 2}
    process.send_signal(number)
    until_said(process, b"takes nothing more, waits for 2 commands")
    gate.let_go(2)
    assert process.wait() == 128 + number
    with rig.q.consumer() as consumer:
        item = consumer.reserve(0)
        assert item is not None
        assert (item.seq, item.attempts, len(rig.q)) == (3, 1, 1)


@pytest.mark.parametrize("number", ENDING)
def test_a_second_signal_kills_them_and_their_attempts_do_not_count(
    rig: Rig, gate: Gate, number: signal.Signals
) -> None:
    rig.q.put_many([b"x"] * 2)
    process = rig.start("-j", 2, "--", *gate.command)
    groups = [gate.arrival().group, gate.arrival().group]
    # A shell tells no difference: at the very end the interpreter lets signals kill it.
    assert signal_until_ended(process, number) in (128 + number, -number)
    for group in groups:
        await_end_of(group)
    process = rig.start("-j", 2, "--", *gate.command)
    assert [gate.arrival().attempt, gate.arrival().attempt] == [1, 1]


def test_an_idle_one_ends_at_once(rig: Rig) -> None:
    rig.q.put(b"x")
    process = rig.start("--", "sh", "-c", "echo ran >&2")
    until_said(process, b"ran")
    process.terminate()
    assert process.wait() == 143
    assert len(rig.q) == 0


def test_signals_that_are_ignored_stay_ignored(rig: Rig, gate: Gate) -> None:
    """As nohup has it, and a shell for its background jobs."""
    rig.q.put(b"x")
    process = rig.start("--until-empty", "--", *gate.command, preexec_fn=_ignore_hangups)
    gate.arrival()
    process.send_signal(signal.SIGHUP)
    gate.let_go()
    assert process.wait() == 0


def _ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_commands_die_with_one_that_is_killed_and_their_items_come_again(
    rig: Rig, gate: Gate
) -> None:
    rig.q.put_many([b"x"] * 2)
    process = rig.start("-j", 2, "--", *gate.command)
    groups = [gate.arrival().group, gate.arrival().group]
    process.kill()
    for group in groups:
        await_end_of(group)
    process = rig.start("--until-empty", "-j", 2, "--", *gate.command)
    assert [gate.arrival().attempt, gate.arrival().attempt] == [2, 2]
    gate.let_go(2)
    assert process.wait() == 0


def test_those_that_begin_as_it_is_killed_die_too(rig: Rig) -> None:
    """Killed while it starts one after the other, it has not told of the last one: 4 of 5 times."""
    rig.q.put_many([b"x"] * 300)
    told = f"TEST={rig.q.path}"

    def those_of_this_test() -> list[str]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if told in Path(f"/proc/{name}/environ").read_text(errors="replace"):
                    found.append(Path(f"/proc/{name}/cmdline").read_text())
        return found

    for _ in range(3):
        environ = {**os.environ, "TEST": rig.q.path}
        process = rig.start("-j", 300, "--", "sleep", 1000, env=environ)
        while not any(words.startswith("sleep") for words in those_of_this_test()):
            assert process.poll() is None
        process.kill()
        process.wait()
        while those_of_this_test():
            pass


def test_one_whose_last_attempt_ended_the_worker_is_a_dead_letter(rig: Rig, gate: Gate) -> None:
    rig.q.put(b"x")
    process = rig.start("--max-attempts", 1, "--", *gate.command)
    gate.arrival()
    process.kill()
    process.wait()
    rig.run("--max-attempts", 1, "--", "sh", "-c", "echo >ran", code=9)
    assert rig.lines("ran") == []
    assert rig.letters() == [(b"x", "attempts", 2)]


def test_nothing_is_lost_by_kills_at_any_moment(rig: Rig) -> None:
    rig.q.put_many([b"%d\n" % number for number in range(60)])
    for lines in (1, 15, 30):
        process = rig.start("-j", 4, "--max-attempts", 9, "--", "sh", "-c", "cat >>ran")
        while len(rig.lines("ran")) < lines:
            assert process.poll() is None
        process.kill()
        process.wait()
    rig.run("-j", 4, "--max-attempts", 9, "--", "sh", "-c", "cat >>ran")
    assert set(map(int, rig.lines("ran"))) == set(range(60))
    assert rig.letters() == []


def test_no_one_is_left_when_it_has_ended(rig: Rig, gate: Gate) -> None:
    rig.q.put(b"x")
    process = rig.start("--until-empty", "--", *gate.command)
    command = gate.arrival().group
    (guard,) = set(alive(1, process.pid)) - {command}
    gate.let_go()
    assert process.wait() == 0
    for pid in (guard, command):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_does_without_a_guard_that_was_killed(rig: Rig, gate: Gate) -> None:
    rig.q.put_many([b"x"] * 2)
    process = rig.start("--until-empty", "--", *gate.command)
    command = gate.arrival().group
    (guard,) = set(alive(1, process.pid)) - {command}
    os.kill(guard, signal.SIGKILL)
    gate.let_go(2)
    assert process.wait() == 0
    assert len(rig.q) == 0


class _Counting(selectors.PollSelector):
    waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        _Counting.waits += 1
        return super().select(timeout)


@pytest.mark.parametrize("held", [1000, 2])
def test_it_sleeps_while_everything_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Also when so many items wait that it takes no more of those that are ready."""
    monkeypatch.setattr(exec_worker, "HELD", held)
    monkeypatch.setattr(selectors, "PollSelector", _Counting)
    monkeypatch.chdir(rig.where)
    _Counting.waits = 0
    rig.q.put_many([b"x"] * 4)
    command = 'echo $MPQUEUE_SEQ >>ran; [ "$MPQUEUE_ATTEMPT" = 2 ]'
    words = ["--until-empty", "--backoff", "1s", "--", "sh", "-c", command]
    assert main(["exec", rig.q.path, *words]) == 0
    order = [int(line) for line in rig.lines("ran")]
    assert sorted(order) == sorted([1, 2, 3, 4] * 2)
    assert order[:3] == ([1, 2, 3] if held == 1000 else [1, 2, 1])
    assert _Counting.waits < 200, "thousands, if it did not sleep"
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
