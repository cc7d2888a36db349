"""Goal: `mpqueue metrics` on stdout, into a file and over HTTP, also among deaths and bad clients.

Method: the real program; scraped with urllib and raw sockets, read by prometheus_client's parser.
"""

from __future__ import annotations

import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

import mpqueue
from conftest import OpenQueue
from mpqueue import metrics
from mpqueue.cli import metrics_http

MPQUEUE = [sys.executable, "-P", "-m", "mpqueue", "metrics"]
Listen = Callable[..., "Listener"]


def values(text: str, name: str, parse: Any = parse_text) -> dict[str, float]:
    """Samples of one name by queue."""
    return {
        sample.labels["queue"]: sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name == name
    }


def run(*words: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MPQUEUE_")}
    env |= options.pop("env", {})
    done = subprocess.run(
        [*MPQUEUE, *map(str, words)], capture_output=True, text=True, env=env, **options
    )
    assert done.returncode == code, done
    return done


class Listener:
    """A listening `mpqueue metrics`."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [*MPQUEUE, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def get(self, accept: str = "") -> str:
        request = urllib.request.Request(self.url, headers={"Accept": accept} if accept else {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.split("/")[2], timeout=60)

    def end(self, number: int = signal.SIGTERM) -> str:
        """Stops it; returns what it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 128 + number
        return said


@pytest.fixture
def listen() -> Iterator[Listen]:
    made: list[Listener] = []

    def start(*words: object) -> Listener:
        made.append(Listener(*words))
        return made[-1]

    yield start
    for listener in made:
        if listener.process.poll() is None:
            listener.process.kill()
        listener.process.communicate()


# ---- stdout and file


def test_stdout_has_the_text(open_queue: OpenQueue, spool: Path) -> None:
    open_queue().put_many([b"x"] * 7)
    done = run(spool)
    assert values(done.stdout, "mpqueue_depth") == {str(spool): 7}
    assert done.stderr == ""
    done = run("--openmetrics", env={"MPQUEUE_PATH": str(spool)})
    assert values(done.stdout, "mpqueue_depth", parse_openmetrics) == {str(spool): 7}


def test_stdout_is_utf8_in_any_locale(open_queue: OpenQueue, spool: Path) -> None:
    open_queue().close()
    path = spool.rename(spool.with_name("spo\u00f6l"))
    env = {"MPQUEUE_PATH": str(path), "PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    done = subprocess.run(MPQUEUE, stdout=subprocess.PIPE, env={**os.environ, **env})
    assert values(done.stdout.decode(), "mpqueue_up") == {str(path): 1}
    path.rename(spool)


def test_a_queue_that_cannot_be_read_is_down_and_named(open_queue: OpenQueue, spool: Path) -> None:
    open_queue()
    done = run(spool, spool / "missing")
    assert values(done.stdout, "mpqueue_up") == {str(spool): 1, str(spool / "missing"): 0}
    (line,) = done.stderr.splitlines()
    assert line.startswith("mpqueue: ")
    assert line.count(str(spool / "missing")) == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        [""],
        ["q", "--listen", "0", "--textfile", "f"],
        *(["q", "--listen", text] for text in ("", "x", "1:2:3", "h:65536", "::1", "[::1]", "-1")),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], tmp_path: Path) -> None:
    assert "usage" in run(*words, code=2, cwd=tmp_path).stderr
    assert os.listdir(tmp_path) == []


def test_the_file_is_replaced_in_one_step(open_queue: OpenQueue, spool: Path) -> None:
    """Whoever has the old one open reads it whole; its readers may be another user."""
    q = open_queue()
    target = spool.parent / "mpqueue.prom"
    before = set(os.listdir(spool.parent))
    run(spool, "--textfile", target)
    old = target.read_text()
    with target.open() as still_open:
        q.put(b"x")
        assert run(spool, "--textfile", "mpqueue.prom", cwd=spool.parent).stdout == ""
        assert still_open.read() == old
    assert values(target.read_text(), "mpqueue_depth") == {str(spool): 1}
    assert target.stat().st_mode & 0o777 == 0o644
    assert set(os.listdir(spool.parent)) - before == {"mpqueue.prom"}


def test_a_reader_never_sees_half_a_file(open_queue: OpenQueue, spool: Path) -> None:
    open_queue()
    target = spool.parent / "mpqueue.prom"
    run(spool, "--textfile", target)
    ended = threading.Event()

    def read() -> int:
        count = 0
        while not ended.is_set():
            text = target.read_text()
            assert text.endswith("\n")
            assert values(text, "mpqueue_up") == {str(spool): 1}
            assert values(text, "mpqueue_fault") == {str(spool): 0}  # the last family
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(read)
        try:
            for _ in range(8):
                run(spool, "--textfile", target)
        finally:
            ended.set()
        assert reads.result() > 0


def test_a_file_that_cannot_be_written_stays_as_it_was(open_queue: OpenQueue, spool: Path) -> None:
    open_queue()
    target = spool.parent / "mpqueue.prom"
    run(spool, "--textfile", target)
    old = target.read_text()

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    assert "File too large" in run(spool, "--textfile", target, code=74, preexec_fn=no_room).stderr
    assert target.read_text() == old
    (spool.parent / "directory").mkdir()
    run(spool, "--textfile", spool.parent / "directory", code=2)
    os.mkfifo(spool.parent / "pipe")  # stands for devices: root could replace them
    assert "regular file" in run(spool, "--textfile", spool.parent / "pipe", code=2).stderr
    assert (spool.parent / "pipe").is_fifo()
    run(spool, "--textfile", spool.parent / "none" / "file", code=74)
    assert sorted(os.listdir(spool.parent)) == ["directory", "mpqueue.prom", "pipe", "spool"]


# ---- HTTP


def test_get_head_and_what_is_not_there(open_queue: OpenQueue, spool: Path, listen: Listen) -> None:
    open_queue().put(b"x")
    server = listen(spool, "--listen", "127.0.0.1:0")
    assert server.url.startswith("http://127.0.0.1:")
    text = server.get()
    assert values(text, "mpqueue_depth") == {str(spool): 1}
    for method, path, status, kind in [
        ("GET", "/metrics", 200, metrics.TEXT),
        ("GET", "/metrics?name=x", 200, metrics.TEXT),
        ("HEAD", "/metrics", 200, metrics.TEXT),
        ("GET", "/", 200, "text/plain; charset=utf-8"),
        ("GET", "/metricsx", 404, "text/plain; charset=utf-8"),
        ("HEAD", "/%2e%2e/etc/passwd", 404, "text/plain; charset=utf-8"),
        ("POST", "/metrics", 501, "text/html;charset=utf-8"),
        ("DELETE", "/", 501, "text/html;charset=utf-8"),
    ]:
        connection = server.connect()
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        assert (answer.status, answer.headers["Content-Type"]) == (status, kind)
        if method == "HEAD":
            assert body == b""
            assert int(answer.headers["Content-Length"]) > 0
        elif kind == metrics.TEXT:
            assert values(body.decode(), "mpqueue_depth") == {str(spool): 1}
        connection.close()
    host, _, port = server.url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert answer.index(b"\r\n\r\n") == len(answer) - 4
    text = server.get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1")
    assert text.endswith("# EOF\n")
    assert values(text, "mpqueue_depth", parse_openmetrics) == {str(spool): 1}
    assert server.end() == ""


def test_clients_that_misbehave_harm_nobody(
    open_queue: OpenQueue, spool: Path, listen: Listen
) -> None:
    """None of what they send comes back, nor is anything of it said on stderr."""
    open_queue()
    server = listen(spool, "--listen", "0")
    host, _, port = server.url.split("/")[2].partition(":")
    idle = socket.create_connection((host, int(port)), timeout=60)
    for data in [
        b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://evil.example/metrics HTTP/1.1\r\nHost: \xff\x00<script>\r\n\r\n",
        b"GET /evil.example HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01 evil.example\r\n\r\n",
        b"GET /" + b"evil.example" * 10000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"evil.example: x\r\n" * 200 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n",  # and away
        b"",
    ]:
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(data)
            if data.endswith(b"\r\n\r\n"):
                answer = b""
                try:
                    while piece := client.recv(65536):
                        answer += piece
                except ConnectionResetError:
                    pass  # it does not read what is too long
                assert b"evil.example" not in answer.replace(b"evil.example" * 9, b"")
        assert values(server.get(), "mpqueue_up") == {str(spool): 1}
    assert server.end() == ""  # though one client is still connected and silent
    idle.close()


def test_ipv6(open_queue: OpenQueue, spool: Path, listen: Listen) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    open_queue()
    server = listen(spool, "--listen", "[::1]:0")
    assert server.url.startswith("http://[::1]:")
    assert values(server.get(), "mpqueue_up") == {str(spool): 1}


def test_a_port_that_is_taken_is_an_error(spool: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(spool, "--listen", port, code=74)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    run(spool, "--listen", "no.such.host.invalid:0", code=74)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_silence(
    open_queue: OpenQueue, spool: Path, listen: Listen, number: int
) -> None:
    open_queue()
    server = listen(spool, "--listen", "0")
    server.get()
    assert server.end(number) == ""


def test_an_answer_on_its_way_is_finished(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_queue()
    render, begun, go_on = metrics.render, threading.Event(), threading.Event()

    def slow(*words: Any, **options: Any) -> str:
        begun.set()
        assert go_on.wait(60)
        return render(*words, **options)

    monkeypatch.setattr(metrics, "render", slow)
    monkeypatch.setattr(metrics_http, "REQUEST_S", 60.0)
    server = metrics_http.Server(("127.0.0.1", 0), [str(spool)], lambda *_: None)
    closed = threading.Event()

    def close() -> None:
        server.shutdown()
        server.server_close()
        closed.set()

    def get() -> str:
        with urllib.request.urlopen(server.url, timeout=60) as answer:
            return str(answer.read().decode())

    with ThreadPoolExecutor(3) as pool:
        serving = pool.submit(server.serve_forever)
        answer = pool.submit(get)
        try:
            assert begun.wait(60)
            closing = pool.submit(close)
            serving.result()
            with pytest.raises((urllib.error.URLError, ConnectionError, TimeoutError)):  # no more
                urllib.request.urlopen(server.url, timeout=0.1)
            assert not closed.is_set()
        finally:
            go_on.set()
        closing.result()
        assert values(answer.result(), "mpqueue_up") == {str(spool): 1}


def test_queues_come_and_go_while_it_serves(spool: Path, listen: Listen) -> None:
    """Said once, not at every scrape."""
    server = listen(spool, "--listen", "0")
    for _ in range(3):
        assert values(server.get(), "mpqueue_up") == {str(spool): 0}
    with mpqueue.Queue(spool, segment_size=1 << 16) as q:
        q.put(b"x")
        assert values(server.get(), "mpqueue_depth") == {str(spool): 1}
    mpqueue.destroy(spool)  # no scraper has it open
    assert values(server.get(), "mpqueue_up") == {str(spool): 0}
    assert len(server.end().splitlines()) == 1


@pytest.mark.crash
def test_many_scrape_while_the_scraped_die(
    open_queue: OpenQueue, spool: Path, listen: Listen
) -> None:
    q = open_queue(segment_size=1 << 16, durability="none", capacity=500)
    server = listen(spool, "--listen", "0")
    script = """
import os, sys, mpqueue
q = mpqueue.Queue(sys.argv[1])
c = q.consumer(wait=60) if sys.argv[2] == "0" else None
q.put(b"first") if c is None else c.take()
print("going", flush=True)
while True:
    q.put(b"x" * 100) if c is None else c.take()
"""
    q.put(b"for the consumer")

    def scrape(_: int) -> float:
        text = server.get()
        assert values(text, "mpqueue_up") == {str(spool): 1}
        return values(text, "mpqueue_items_enqueued_total")[str(spool)]

    for _ in range(3):
        children = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", script, str(spool), str(number)],
                stdout=subprocess.PIPE,
            )
            for number in range(3)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"going\n"
        with ThreadPoolExecutor(8) as pool:
            scrapes = [pool.submit(scrape, number) for number in range(24)]
            for child, done in zip(children, scrapes, strict=False):
                done.result()
                child.kill()
            counts = [done.result() for done in scrapes]
        for child in children:
            child.communicate()
        assert max(counts) <= scrape(0)
    stats = q.stats()
    assert values(server.get(), "mpqueue_items_enqueued_total")[str(spool)] == stats.items_enqueued
    assert stats.members_alive == 1
    assert server.end() == ""
