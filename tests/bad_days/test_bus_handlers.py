"""Goal: Python's own handler of SIGBUS and the queue's live together, whoever comes first.

Method: children in which faulthandler is enabled before, between and after the opens; then a file
is truncated under a call, or the signal is sent. tests/native/test_bus.c does the same in C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rig import PATIENCE

PRELUDE = """
import faulthandler, os, signal, sys, threading
import mpqueue
path = sys.argv[1]
def open_one(name):
    return mpqueue.Queue(path + name, segment_size=65536, max_segments=8, durability="none")
def harm(queue, *, file="segment-000000000001", refusal=OSError):
    queue.put(b"before")
    os.truncate(os.path.join(queue.path, file), 0)
    for _ in range(3):
        try:
            queue.put(b"after")
        except refusal:
            continue
        sys.exit("nothing was raised")
def say(word):
    os.write(1, word.encode() + b"\\n")
"""


def run(path: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    command = [sys.executable, "-P", "-c", PRELUDE + textwrap.dedent(script), str(path / "spool")]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)


def reports(done: subprocess.CompletedProcess[str]) -> int:
    return done.stderr.count("Fatal Python error: Bus error")


ORDERS = {
    "before": "faulthandler.enable(); q = open_one('1')",
    "between": "q = open_one('1'); faulthandler.enable(); r = open_one('2')",
    "twice": """
        q = open_one('1')
        for n in range(20):
            faulthandler.enable()
            r = open_one('2')
            faulthandler.disable()
            r = open_one('3')
        faulthandler.enable()
        r = open_one('4')""",
    "after": "q = open_one('1'); q.put(b'mapped'); faulthandler.enable()",
}
order = pytest.mark.parametrize("order", ORDERS)


@order
def test_a_signal_is_reported_once_and_ends_the_process(tmp_path: Path, order: str) -> None:
    act = "os.kill(os.getpid(), signal.SIGBUS); say('alive')"
    done = run(tmp_path, f"{textwrap.dedent(ORDERS[order])}\n{act}")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
    assert reports(done) == 1, done.stderr


@pytest.mark.parametrize("order", ["between", "after"])
@pytest.mark.parametrize("thread", [False, True])
def test_a_truncated_segment_is_an_exception(tmp_path: Path, order: str, thread: bool) -> None:
    act = "harm(q); say('told')"
    if thread:  # it has no alternate stack, the main thread has faulthandler's
        act = "t = threading.Thread(target=lambda: (harm(q), say('told'))); t.start(); t.join()"
    done = run(tmp_path, f"{textwrap.dedent(ORDERS[order])}\n{act}\nsay('alive')")
    assert (done.returncode, done.stdout) == (0, "told\nalive\n"), done.stderr
    assert reports(done) == (order == "after")


@order
def test_a_truncated_control_is_an_exception(tmp_path: Path, order: str) -> None:
    act = "harm(q, file='control', refusal=mpqueue.QueueRemoved); say('alive')"
    done = run(tmp_path, f"{textwrap.dedent(ORDERS[order])}\n{act}")
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


STEPS = {
    "open": "r = open_one('2')",
    "consumer": "c = q.consumer()",
    "wait": """
before = q.stats().waits
while q.stats().waits == before:
    c.reserve(0.001)""",
    "segment": "[q.put(bytes(20_000)) for n in range(4)]",
}


@pytest.mark.parametrize("step", STEPS)
def test_slow_calls_step_in_front_again(tmp_path: Path, step: str) -> None:
    """Also read outside of calls' guarded parts, and without a report."""
    script = f"""
q = open_one('1')
c = q.consumer() if {step == "wait"} else None
faulthandler.enable()
{STEPS[step]}
os.truncate(os.path.join(q.path, "control"), 0)
try:
    len(q)
except mpqueue.QueueRemoved:
    say("told")
"""
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout, reports(done)) == (0, "told\n", 0), done.stderr


def test_a_fault_elsewhere_is_reported_once(tmp_path: Path) -> None:
    script = """
import mmap, tempfile
q = open_one('1')
faulthandler.enable()
r = open_one('2')
file = tempfile.TemporaryFile()
file.truncate(4096)
view = mmap.mmap(file.fileno(), 4096)
file.truncate(0)
view[0]
"""
    done = run(tmp_path, script)
    assert (done.returncode, reports(done)) == (-signal.SIGBUS, 1), done.stderr


def test_other_interpreters_share_the_handler(tmp_path: Path) -> None:
    script = '''
try:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
except ImportError:
    import _interpreters as interpreters
    run = interpreters.exec
q = open_one('1')
faulthandler.enable()
one = interpreters.create()
run(one, """
try:
    import faulthandler
    faulthandler.enable()
except ImportError:  # it may refuse to
    pass
""")
r = open_one('2')
interpreters.destroy(one)
harm(q)
say("alive")
'''
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
