"""Goal: what a web server answered with 200 is delivered, whatever happens to its workers.

Method: the applications of docs/examples in a real gunicorn (sync, gthread, gevent workers, handle
opened before or after the fork) and a real uvicorn, under wrk. Meanwhile workers are killed, one
stands still until the master kills it, the master reloads, and the consumer is killed and started
again. Then the server stops gracefully, the rest is drained, and every number that was answered
must have come out. MPQ_PROOF=1 keeps it up for longer. Skipped, with the reason, without gunicorn
or wrk; with CI=true that is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mpqueue

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "docs" / "examples"
SECONDS = 8 if os.environ.get("MPQ_PROOF") == "1" else 2
CLI = [sys.executable, "-P", "-m", "mpqueue"]
pytestmark = [pytest.mark.slow, pytest.mark.crash]


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if shutil.which("wrk") is None:
        missing.append("wrk")
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but there is no {', '.join(missing)}")
    if missing:
        pytest.skip(f"there is no {', '.join(missing)}")


class Server:
    """A running server; its log says where it listens and who its workers are."""

    def __init__(self, words: list[str], path: Path, log: Path) -> None:
        self._log = log
        environment = {**os.environ, "MPQUEUE_PATH": str(path), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdout=out,
                stderr=out,
                env=environment,
                cwd=EXAMPLES,
                start_new_session=True,
            )
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            self._poll()
        self.url = found[0]
        while True:  # until a worker listens
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(found[1]))).close()
                return
            self._poll()

    def _poll(self) -> None:
        assert self.process.poll() is None, self._log.read_text()
        time.sleep(0.01)

    def workers(self) -> list[int]:
        """Processes whose parent is the server."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def stop(self) -> None:
        """Graceful; fails when it was not. A worker that stands still could not take part."""
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) in (0, -signal.SIGTERM), self._log.read_text()

    def end(self) -> None:
        """Kills what is left of it, orphans too."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Drain:
    """The consumer service: `mpqueue get --follow`, its output appended to a file."""

    def __init__(self, path: Path, out: Path) -> None:
        self._words = [*CLI, "get", str(path), "--follow", "--jsonl", "--wait", "60"]
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self.again()

    def again(self) -> None:
        """Kills it, if it runs, and starts it."""
        self.end()
        with self._out.open("ab") as out:
            self._process = subprocess.Popen(self._words, stdout=out)

    def end(self) -> None:
        """Kills it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def delivered(self) -> set[int]:
        """Seqs in the file; a line that a kill has cut is no delivery."""
        seqs = set()
        for line in self._out.read_bytes().splitlines():
            with suppress(ValueError):
                seqs.add(int(json.loads(line)["seq"]))
        return seqs


@contextmanager
def _load(url: str, answers: Path) -> Iterator[subprocess.Popen[bytes]]:
    answers.mkdir()
    words = ["wrk", "-t2", "-c8", f"-d{SECONDS}s", "--timeout", "30s", "-s", str(HERE / "load.lua")]
    process = subprocess.Popen([*words, url, str(answers)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _answered(answers: Path) -> set[int]:
    return {int(line) for file in answers.iterdir() for line in file.read_text().split()}


def _trouble(
    server: Server, drain: Drain, load: subprocess.Popen[bytes], dice: random.Random, pace: int
) -> int:
    """Until the load ends. Returns how many processes were killed."""
    killed = 0
    while load.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            load.wait(dice.uniform(0.05, 0.3) * pace)
        victims = server.workers()
        chance = dice.random()
        if chance < 0.2:
            drain.again()
        elif chance < 0.3:
            server.process.send_signal(signal.SIGHUP)
        elif victims:
            number = signal.SIGSTOP if chance < 0.4 else signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(dice.choice(victims), number)
        killed += chance < 0.2 or chance >= 0.4
    return killed


def _everything_arrives(server: Server, path: Path, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    mpqueue.Queue(path).close()
    drain = Drain(path, tmp_path / "delivered")
    dice, killed, pace = random.Random(seed), 0, 1
    answered: set[int] = set()
    try:
        while not (answered and killed):  # on a crowded machine workers die before they can answer
            answers = tmp_path / f"answers-{pace}"
            with _load(server.url, answers) as load:
                killed += _trouble(server, drain, load, dice, pace)
            answered |= _answered(answers)
            pace *= 2
        server.stop()
        with mpqueue.Queue(path) as queue:
            queue.seal()
            drain.again()
            queue.join()
        drain.end()
    finally:
        drain.end()
        server.end()
    print(f"{len(answered)} answered, {killed} killed")
    assert answered - drain.delivered() == set()


@pytest.mark.parametrize("preload", [False, True], ids=["own handle", "inherited handle"])
@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_answered_by_gunicorn_is_delivered(tmp_path: Path, kind: str, preload: bool) -> None:
    _need("gunicorn", *(["gevent"] if kind == "gevent" else []))
    path = tmp_path / "spool"
    words = ["-m", "gunicorn", "wsgi_app:app", "--workers", "3", "--worker-class", kind]
    words += ["--bind", "127.0.0.1:0", "--timeout", "2", "--graceful-timeout", "5"]
    words += ["--max-requests", "300", "--max-requests-jitter", "100"]
    words += ["--threads", "4"] if kind == "gthread" else []
    words += ["--preload"] if preload else []
    server = Server(words, path, tmp_path / "log")
    _everything_arrives(server, path, tmp_path, seed=len(kind) * 2 + preload)


def test_answered_by_uvicorn_is_delivered(tmp_path: Path) -> None:
    _need("uvicorn")
    path = tmp_path / "spool"
    words = ["-m", "uvicorn", "asgi_app:app", "--workers", "3", "--host", "127.0.0.1"]
    server = Server([*words, "--port", str(_free_port())], path, tmp_path / "log")
    _everything_arrives(server, path, tmp_path, seed=1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
