"""Goal: the command line moves the items of an encrypted queue with its key file, and without it
neither shows one nor puts plaintext beside them.

Method: real processes; files are searched for what was put.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue
from mpqueue import codecs

pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
KEY, OTHER = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "queue")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(
        *words: str, stdin: bytes = b"", code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mpqueue", *words],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return run


def bodies(path: str) -> list[bytes]:
    with mpqueue.inspect(path) as view:
        return [record.body for record in view.items()]


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text(f"1 {KEY.hex()}\n")
    return str(file)


def _nothing_shows(path: str, *words: bytes) -> None:
    for file in Path(path).rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert not [word for word in words if word in data], file


def test_lines_go_in_and_come_out_and_lie_there_encrypted(run: Run, path: str, keys: str) -> None:
    run("put", path, "--key-file", keys, stdin=b"first secret\nsecond secret\n")
    run("put", path, "--header", "k=v", stdin=b"third secret\n", MPQUEUE_KEY_FILE=keys)
    _nothing_shows(path, b"secret")
    with mpqueue.inspect(path) as view:
        assert view.options["codec"] == "bytes+aes"
    assert b"first secret" in run("peek", path, "--key-file", keys).stdout
    shown = run("peek", path, "--key-file", keys, "--json").stdout.splitlines()
    assert [json.loads(line)["body"] for line in shown][1:] == ["second secret", "third secret"]
    exported = run("export", path, "--key-file", keys).stdout
    assert json.loads(exported.splitlines()[2])["headers"] == {"k": "v"}
    assert run("get", path, "--key-file", keys).stdout == b"first secret\n"
    rest = run("get", path, "-n", "all", "--jsonl", MPQUEUE_KEY_FILE=keys).stdout
    run("put", path, "--jsonl", "--key-file", keys, stdin=rest)
    with mpqueue.Queue(path, codec=codecs.Aes(key_file=keys)) as queue, queue.consumer() as c:
        items = [(item.value, item.headers) for item in c.drain()]
    assert items == [(b"second secret", {}), (b"third secret", {"k": "v"})]


def test_without_the_key_nothing_is_put_beside_or_taken(
    run: Run, path: str, keys: str, tmp_path: Path
) -> None:
    run("put", path, "--key-file", keys, stdin=b"a secret\n")
    for verb in ("put", "get"):
        done = run(verb, path, stdin=b"plain\n", code=7)
        assert b"--key-file" in done.stderr
        assert done.stdout == b""
    run("logd", path, "--file", "log", "--until-empty", code=7)
    (tmp_path / "rows.db").touch()
    run("relay", path, "--sqlite", "rows.db", "--until-empty", code=7)
    assert len(bodies(path)) == 1
    for verb in ("peek", "export"):
        done = run(verb, path)
        assert b"secret" not in done.stdout
        assert b"--key-file decrypts" in done.stderr
    run("verify", path, "--deep")
    run("stats", path)
    with open(keys, "w") as file:
        file.write(f"1 {OTHER.hex()}\n")
    for verb in ("put", "get", "peek", "export"):
        done = run(verb, path, "--key-file", keys, stdin=b"plain\n", code=7)
        assert b"not the key 1" in done.stderr
        assert OTHER.hex().encode() not in done.stderr
    assert len(bodies(path)) == 1


def test_a_key_file_for_a_queue_that_is_not_encrypted_puts_no_plaintext(
    run: Run, path: str, keys: str
) -> None:
    run("put", path, stdin=b"plain\n")
    done = run("put", path, "--key-file", keys, stdin=b"secret\n", code=2)
    assert b"is not encrypted" in done.stderr
    assert run("get", path, "--key-file", keys).stdout == b"plain\n"
    _nothing_shows(path, b"secret")


@pytest.mark.parametrize("verb", ["init", "put"])
def test_the_codec_within_is_kept_and_a_bad_key_file_makes_no_queue(
    run: Run, path: str, keys: str, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "empty").write_text("")
    run(verb, path, "--key-file", "empty", code=2)
    run(verb, path, "--key-file", "none", code=74)
    assert not os.path.exists(path)
    run(verb, path, "--key-file", keys, stdin=b'{"a": 1}\n', MPQUEUE_CODEC="json")
    with mpqueue.Queue(path, codec=codecs.Aes("json", key_file=keys)) as queue:
        assert (queue.get() if verb == "put" else {"a": 1}) == {"a": 1}


@pytest.fixture
def broken(path: str, keys: str) -> str:
    """Items 2 and 3 of 5 cannot be decrypted."""
    with mpqueue.Queue(path, codec=codecs.Aes(key_file=keys), segment_size=1 << 20) as queue:
        queue.put(b"1")
        with mpqueue.Queue(path, raw=True) as raw:
            raw.put_many([b"planted", b"x" * 100])
        queue.put_many([b"4", b"5"])
    return path


def test_get_stops_at_what_cannot_be_decrypted_and_it_stays(
    run: Run, broken: str, keys: str
) -> None:
    for taken in (b"1\n", b""):
        done = run("get", broken, "--key-file", keys, "-n", "all", code=8)
        assert done.stdout == taken
        assert b":2 cannot be decoded" in done.stderr
        assert b"--undecodable" in done.stderr
    assert len(bodies(broken)) == 4


def test_get_goes_on_behind_what_it_keeps(run: Run, broken: str, keys: str) -> None:
    words = ("get", broken, "--key-file", keys, "-n", "all", "--undecodable")
    done = run(*words, "keep", code=8)
    assert done.stdout == b"1\n4\n5\n"
    assert b":2 cannot" in done.stderr
    assert b":3 cannot" in done.stderr
    assert bodies(broken) == [b"planted", b"x" * 100]
    assert run(*words, "keep", code=8).stdout == b""
    assert run(*words, "skip", code=8).stdout == b""
    assert run(*words, "skip", code=1).stderr == b""
    with mpqueue.Queue(broken, raw=True) as queue:
        stats = queue.stats()
        assert (stats.items_skipped, stats.lost_items, stats.items_acked) == (2, 0, 3)


def test_get_moves_it_to_the_dead_letters(run: Run, broken: str, keys: str) -> None:
    words = ("get", broken, "--key-file", keys, "-n", "all", "--undecodable", "dead")
    assert run(*words, code=8).stdout == b"1\n4\n5\n"
    with mpqueue.Queue(broken, raw=True) as queue:
        assert [letter.body for letter in queue.dead] == [b"planted", b"x" * 100]
        assert {letter.reason for letter in queue.dead} == {"cannot be decoded"}
        assert len(queue) == 0


def test_peek_and_export_name_what_cannot_be_decrypted_and_go_on(
    run: Run, broken: str, keys: str
) -> None:
    for words in (("peek", broken, "--json"), ("export", broken)):
        done = run(*words, "--key-file", keys, code=8)
        shown = [json.loads(line)["body"] for line in done.stdout.splitlines()]
        assert shown == ["1", "4", "5"]
        assert done.stderr.count(b"cannot be decrypted") == 2
