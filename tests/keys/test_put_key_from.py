"""`mpqueue put --key-from`: each key once, also when it is repeated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpqueue
from mpqueue import semaphore

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object, stdin: str = "", ends: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ends, done.stderr
    return done


@pytest.fixture
def keyed(spool: Path) -> Path:
    run("init", spool, "--key-window", 100, "--durability", "none")
    return spool


def test_lines(keyed: Path) -> None:
    lines = "1:one\n2:two\n1:one, changed\n"
    first = run("put", keyed, "--key-from", ":", "--print-seq", stdin=lines).stdout.split()
    again = run("put", keyed, "--key-from", ":", "--print-seq", stdin=lines).stdout.split()
    assert first == again == [first[0], first[1], first[0]]
    run("put", keyed, "--key-from", r"\t", stdin="2\ttwo\n3\tthree\n")
    assert run("get", keyed, "-n", "all").stdout == "1:one\n2:two\n3\tthree\n"
    done = run("put", keyed, "--key-from", ":", stdin="4:four\nnone\n", ends=2)
    assert "line 2 has no ':'" in done.stderr
    assert run("get", keyed, "-n", "all").stdout == "4:four\n"


def test_json_lines(keyed: Path) -> None:
    lines = [
        {"body": "one", "order": 17},
        {"body": "two", "order": "17"},
        {"body": "three", "order": "18", "headers": {"k": "v"}},
        {"body": "three", "order": "18"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for _ in range(2):
        run("put", keyed, "--jsonl", "--key-from", "order", stdin=text)
    run("put", keyed, "--jsonl", "--key-from", "headers.k", stdin=json.dumps(lines[2]) + "\n")
    assert run("get", keyed, "-n", "all").stdout == "one\nthree\nthree\n"
    for line in ({"body": ""}, {"body": "", "order": True}, {"body": "", "order": ""}):
        run("put", keyed, "--jsonl", "--key-from", "order", stdin=json.dumps(line), ends=2)


def test_a_file(keyed: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    for _ in range(2):
        run("put", keyed, "--file", file, "--key", "file")
    assert run("get", keyed, "-n", "all", "--null").stdout == "content\0"


def test_a_copy_may_be_cut_short_and_repeated(keyed: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    with mpqueue.Queue(old, durability="none") as queue:
        queue.put_many([b"one", b"two", b"one"])
    exported = run("export", old, "--jsonl").stdout
    run("put", keyed, "--jsonl", "--key-from", "id", stdin=exported.splitlines()[0])
    run("put", keyed, "--jsonl", "--key-from", "id", stdin=exported)
    assert run("get", keyed, "-n", "all").stdout == "one\ntwo\none\n"
    mpqueue.destroy(old)


def test_what_is_refused(keyed: Path, tmp_path: Path) -> None:
    for wrong in (
        ["--key", "k"],
        ["--key-from", ""],
        ["--frame", "u32", "--key-from", "k"],
        ["--file", "f", "--key-from", "k"],
        ["--file", "f", "--key", "k" * 1025],
    ):
        run("put", keyed, *wrong, ends=2)
    plain = tmp_path / "plain"
    with mpqueue.Queue(plain) as queue:
        gate = queue.gate_name
    done = run("put", plain, "--key-from", ":", stdin="1:one\n", ends=7)
    assert "key_window" in done.stderr
    semaphore.unlink(gate)


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "idempotence.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "idempotence.md", "exec"), {})
    mpqueue.destroy("spool")
