"""The verbs as a shell meets them: what goes to stdout, which exit code, what stays in the queue.

Method: real processes with pipes. Each test has its own queue directory.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpqueue
from mpqueue import layout
from mpqueue.reader import inspect

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
MPQUEUE = [sys.executable, "-P", "-m", "mpqueue"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "queue")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(
        *words: str, stdin: bytes = b"", code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MPQUEUE_")}
        done = subprocess.run(
            [*MPQUEUE, *words],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**inherited, **environment},
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return run


def bodies(path: str) -> list[bytes]:
    with inspect(path) as view:
        return [record.body for record in view.items()]


def damage(path: str, number: int) -> None:
    """Flips two bits in the body of the n-th item."""
    with inspect(path) as view:
        record = list(view.items())[number]
    with (Path(path) / layout.segment_name(record.generation)).open("r+b") as file:
        file.seek(record.offset + layout.FRAME_HEADER)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 3]))


def test_lines_go_in_and_come_out_in_order(run: Run, path: str) -> None:
    data = b"".join(b"line %d\n" % number for number in range(1000))
    assert run("put", path, stdin=data).stdout == b""
    assert run("get", path, "-n", "3").stdout == b"line 0\nline 1\nline 2\n"
    assert run("get", path).stdout == b"line 3\n"
    assert run("get", path, "-n", "all").stdout.count(b"\n") == 996
    assert run("get", path, code=1).stdout == b""
    run("get", path, "--timeout", "10ms", code=124)


def test_init_set_and_the_environment(run: Run, path: str) -> None:
    run("init", path, "--segment-size", "64K", "--capacity", "5", "--durability", "interval:50ms")
    with mpqueue.Queue(path) as queue:
        options = queue.options
    assert (options.segment_size, options.capacity) == (65536, 5)
    assert (options.durability, options.interval) == ("interval", 0.05)
    run("set", "capacity=none", "retain=10m", "ack-linger=1ms", MPQUEUE_PATH=path)
    with mpqueue.Queue(path) as queue:
        assert (queue.options.capacity, queue.options.retain) == (None, 600.0)
    assert b"segment_size" in run("set", path, "segment_size=1M", code=2).stderr
    assert b"OPTION=VALUE" in run("set", path, "nonsense=1", code=2).stderr
    assert run("init", path, "--segment-size", "1M", code=7).stderr
    other = path + "-2"
    run("put", other, stdin=b"x\n", MPQUEUE_DURABILITY="none", MPQUEUE_SEGMENT_SIZE="64K")
    with mpqueue.Queue(other) as queue:
        assert (queue.options.durability, queue.options.segment_size) == ("none", 65536)


def test_json_lines_round_trip_with_headers_and_raw_bytes(run: Run, path: str) -> None:
    run("put", path, "--header", "from=test", "--header", "k=v=w", stdin=b"one\n")
    run("put", path, "--frame", "u32", stdin=struct.pack("<I", 3) + b"\xff\n\0")
    first, second = map(json.loads, run("get", path, "--jsonl", "-n", "2").stdout.splitlines())
    assert (first["body"], first["headers"]) == ("one", {"from": "test", "k": "v=w"})
    assert second["body_base64"] == "/woA"
    assert set(first) == {"seq", "id", "enqueued_at", "attempts", "headers", "body"}
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in (first, second))
    run("put", path, "--jsonl", stdin=lines)
    assert bodies(path) == [b"one", b"\xff\n\0"]
    out = run("get", path, "--frame", "u32", "-n", "all").stdout
    assert out == b"\3\0\0\0one\3\0\0\0\xff\n\0"


def test_a_file_is_one_item_and_null_separates(run: Run, path: str, tmp_path: Path) -> None:
    (tmp_path / "letter").write_bytes(b"dear\nall\0")
    run("put", path, "--file", "letter")
    run("put", path, "--null", stdin=b"a\nb\0c")
    assert bodies(path) == [b"dear\nall\0", b"a\nb", b"c"]
    assert run("get", path, "--null", "-n", "all").stdout == b"dear\nall\0\0a\nb\0c\0"


def test_full_blocks_fails_or_drops(run: Run, path: str) -> None:
    run("init", path, "--capacity", "3")
    seqs = run("put", path, "--print-seq", stdin=b"1\n2\n").stdout.split()
    assert [int(seq) for seq in seqs] == [int(seqs[0]), int(seqs[0]) + 1]
    failed = run("put", path, "--on-full", "fail", stdin=b"3\n4\n", code=6)
    assert b"1 item was put before" in failed.stderr
    run("put", path, "--timeout", "10ms", stdin=b"5\n6\n", code=6)
    dropped = run("put", path, "--on-full", "drop", stdin=b"7\n8\n")
    assert b"dropped" in dropped.stderr
    assert len(bodies(path)) == 3
    with mpqueue.Queue(path) as queue:
        assert queue.stats().items_dropped >= 1


def test_seal_ends_puts_and_the_follower(run: Run, path: str) -> None:
    run("put", path, stdin=b"a\nb\n")
    run("seal", path)
    run("put", path, stdin=b"c\n", code=3)
    assert run("get", path, "--follow").stdout == b"a\nb\n"
    run("get", path, code=3)
    run("seal", path, "--undo")
    run("put", path, stdin=b"c\n")
    assert bodies(path) == [b"c"]


def test_following_prints_each_item_when_it_comes(path: str) -> None:
    with mpqueue.Queue(path) as queue:
        follower = subprocess.Popen([*MPQUEUE, "get", path, "--follow"], stdout=subprocess.PIPE)
        assert follower.stdout is not None
        for number in range(5):
            queue.put(b"%d" % number)
            assert follower.stdout.readline() == b"%d\n" % number
        follower.send_signal(signal.SIGTERM)
        assert follower.wait() == 143
        follower.stdout.close()


def test_a_second_consumer_is_told_and_looking_needs_no_role(run: Run, path: str) -> None:
    with mpqueue.Queue(path) as queue:
        queue.put_many([b"a", b"b"])
        with queue.consumer():
            assert run("get", path, code=4).stdout == b""
            assert len(run("peek", path).stdout.splitlines()) == 2
            assert json.loads(run("stats", path, "--json").stdout)["depth"] == 2
            assert run("verify", path).returncode == 0
            assert len(run("export", path).stdout.splitlines()) == 2
            run("destroy", path, "--yes", code=4)


def test_a_broken_pipe_gives_the_items_back(path: str) -> None:
    with mpqueue.Queue(path) as queue:
        queue.put_many([b"x" * 1000] * 1000)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*MPQUEUE, "get", path, "-n", "all"], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""
    assert len(bodies(path)) == 1000


def test_peek_and_export_show_without_taking(run: Run, path: str) -> None:
    run("peek", path, code=7)
    run("put", path, stdin=b"a\nb\nc\n")
    shown = [
        json.loads(line) for line in run("peek", path, "-n", "2", "--json").stdout.splitlines()
    ]
    assert [value["body"] for value in shown] == ["a", "b"]
    start = str(shown[1]["seq"])
    exported = run("export", path, "--from", start).stdout.splitlines()
    assert [json.loads(line)["body"] for line in exported] == ["b", "c"]
    assert run("export", path, "--frame", "u32").stdout.count(b"\1\0\0\0") == 3
    assert len(bodies(path)) == 3


def test_stats_speak_to_people_and_to_programs(run: Run, path: str) -> None:
    run("put", path, stdin=b"a\nb\n")
    text = run("stats", path).stdout.decode()
    assert "depth" in text
    assert "option durability" in text
    values = json.loads(run("stats", path, "--json").stdout)
    assert values["depth"] == 2
    assert values["options"]["durability"] == "group"
    assert values["sync_duration_seconds"]["count"] >= 1


def test_destroy_wants_a_yes_for_items(run: Run, path: str) -> None:
    run("put", path, stdin=b"a\n")
    assert b"holds 1 item;" in run("destroy", path, code=2).stderr
    run("destroy", path, "--yes")
    assert not Path(path).exists()
    run("init", path)
    run("destroy", path)
    assert not Path(path).exists()


def test_damage_is_named_passed_and_repaired(run: Run, path: str) -> None:
    run("put", path, stdin=b"0\na\nb\nc\nd\n")
    # The consumer leaves the durable watermark behind, so that what follows counts as promised.
    assert run("get", path).stdout == b"0\n"
    damage(path, 1)
    report = json.loads(run("verify", path, "--deep", "--json", code=5).stdout)
    assert report["damage"]
    assert report["counts"]["damaged"] == 1
    assert b"DAMAGED" in run("verify", path, "--deep", code=5).stdout
    assert len(run("export", path, code=5).stdout.splitlines()) == 3
    dry = json.loads(run("repair", path, "--dry-run", "--json", code=5).stdout)
    assert dry["lost_items"] == 1
    run("verify", path, "--deep", code=5)
    assert json.loads(run("repair", path, "--json", code=5).stdout)["lost_items"] == 1
    run("verify", path, "--deep")
    assert run("repair", path).returncode == 0
    assert run("get", path, "-n", "all").stdout == b"a\nc\nd\n"
    assert b"lost" in run("doctor", path).stdout


def test_get_passes_damage_and_says_so(run: Run, path: str) -> None:
    run("put", path, stdin=b"a\nb\nc\n")
    damage(path, 1)
    done = run("get", path, "-n", "all", code=5)
    assert done.stdout == b"a\nc\n"
    assert b"lost" in done.stderr
    run("get", path, code=1)


def test_doctor_gives_sentences_and_finds_damage(run: Run, path: str) -> None:
    run("put", path, stdin=b"a\nb\nc\n")
    advice = json.loads(run("doctor", path, "--json").stdout)
    topics = {entry["topic"] for entry in advice["findings"]}
    assert {"filesystem", "semaphore", "members", "limits", "losses", "backlog", "disk"} <= topics
    assert not advice["damage"]
    meta = Path(path) / "meta"
    data = bytearray(meta.read_bytes())
    data[100] ^= 1
    meta.write_bytes(data)
    assert b"warning" in run("doctor", path).stdout


def test_no_queue_and_wrong_words(run: Run, path: str) -> None:
    for verb in ("get", "peek", "stats", "verify", "export", "doctor", "seal", "repair"):
        assert b"mpqueue: " in run(verb, path, code=7).stderr
    run("fly", code=2)
    run("get", code=2)
    run("put", path, "--header", "novalue", stdin=b"x\n", code=2)
    assert run("--version").stdout.startswith(b"mpqueue ")


def test_a_signal_ends_a_waiting_get_at_once(path: str) -> None:
    mpqueue.Queue(path).close()
    for number in (signal.SIGINT, signal.SIGTERM):
        waiting = subprocess.Popen(
            [*MPQUEUE, "get", path, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with mpqueue.Queue(path) as queue:
            queue.put(b"ready")
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"ready\n"
        waiting.send_signal(number)
        assert waiting.communicate() == (b"", b"")
        assert waiting.returncode == 128 + number


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["group", "none"])
def test_demo_loses_nothing_though_it_kills(run: Run, tmp_path: Path, durability: str) -> None:
    files = []
    for number in range(8):
        file = tmp_path / f"text-{number}"
        file.write_bytes(b"".join(b"%d %d\n" % (number, line) for line in range(2000)))
        files.append(str(file))
    words = ["demo", *files, "--durability", durability, "--batch", "7", "--json"]
    result: dict[str, Any] = json.loads(run(*words).stdout)
    assert result["lines"] == 16000
    assert (result["lost"], result["altered"]) == (0, 0)
    assert (result["killed_producers"], result["killed_consumers"]) == (1, 1)
    assert result["accepted"] == 16000
    assert result["delivered"] - result["checked_again"] == 16000 + result["accepted_unheard"]
    table = run("demo", files[0], "--durability", durability).stdout
    assert b"nothing lost" in table


def test_bench_measures(run: Run) -> None:
    words = ["bench", "--producers", "2", "--size", "100", "--seconds", "200ms", "--json"]
    result = json.loads(run(*words, "--durability", "none").stdout)
    assert result["put_items_per_second"] > 0
    assert result["through_items_per_second"] > 0
    assert result["put_max_us"] >= result["put_p50_us"]


def test_follow_ends_when_nobody_reads_any_more(path: str) -> None:
    """... and gives the role back, though no item comes that could not be written."""
    with mpqueue.Queue(path) as queue:
        queue.put(b"1")
        process = subprocess.Popen([*MPQUEUE, "get", path, "--follow"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        with queue.consumer():
            pass


def test_get_waits_for_the_role(run: Run, path: str) -> None:
    with mpqueue.Queue(path) as queue:
        queue.put_many([b"1", b"2"])
        with queue.consumer() as consumer:
            talk = run("get", path, code=4).stderr
            assert f"process {os.getpid()}".encode() in talk
            assert b"--wait" in talk
            later = subprocess.Popen(
                [*MPQUEUE, "get", path, "--wait", "1h"], stdout=subprocess.PIPE
            )
            consumer.take()
        assert later.communicate()[0] == b"2\n"
        assert later.returncode == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", b"is no JSON object"),
        (b"[1]", b"is no JSON object"),
        (b"{}", b"needs one of body and body_base64"),
        (b'{"body": "a", "body_base64": "YQ=="}', b"needs one of body and body_base64"),
        (b'{"body": 1}', b"has a body that is no string"),
        (b'{"body_base64": null}', b"has a body_base64 that is no string"),
        (b'{"body_base64": "%%"}', b"has a body_base64 that is no base64"),
        (b'{"body": "\\ud800"}', b"has a body that is no valid text"),
        (b'{"body": "a", "headers": 5}', b"headers are no object"),
    ],
)
def test_a_line_that_cannot_be_put_is_named(run: Run, path: str, line: bytes, why: bytes) -> None:
    good = b'{"body": "before"}\n'
    talk = run("put", path, "--jsonl", stdin=good + line + b"\n", code=2).stderr
    assert b"line 2 " in talk
    assert why in talk
    assert bodies(path) == [b"before"]


def test_stats_is_no_member_of_what_it_counts(run: Run, path: str) -> None:
    with mpqueue.Queue(path, mode=0o660) as queue:
        queue.put(b"1")
        shown = json.loads(run("stats", path, "--json").stdout)
        assert shown["members_alive"] == 1
        assert [member["pid"] for member in shown["attached"]] == [os.getpid()]
    shown = json.loads(run("stats", path, "--json").stdout)
    assert shown["members_alive"] == 0
    assert shown["attached"] == []
    lines = run("stats", path).stdout.decode().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("option mode")] == ["0660"]
    assert [line.split()[-1] for line in lines if line.startswith("option capacity")] == ["none"]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["put", "--help"]])
def test_help_that_cannot_be_written_is_an_error(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-P", "-m", "mpqueue", *words], stdout=full)
    assert done.returncode == 74


# ---- headers ------------------------------------------------------------------------------------


def test_headers_are_shown_and_a_line_of_its_own_goes_ahead(run: Run, path: str) -> None:
    line = b'{"body": "x", "headers": {"a": "own", "c": "3"}}\n'
    run("put", path, "--jsonl", "--header", "a=1", "--header", "b=2", stdin=line)
    wanted = {"a": "own", "b": "2", "c": "3"}
    assert repr(wanted).replace("'a': 'own', ", "").encode()[1:] in run("peek", path).stdout
    for words in (("peek", path, "--json"), ("export", path)):
        assert json.loads(run(*words).stdout)["headers"] == wanted
    taken = run("get", path, "--jsonl").stdout
    run("put", path, "--jsonl", stdin=taken)
    assert json.loads(run("get", path, "--jsonl").stdout)["headers"] == wanted


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a=1", "a=2"], b"'a' is given twice"),
        (["a=" + "x" * 40_000, "b=" + "x" * 40_000], b"more than 65,528 bytes"),
        (["=1"], b"is not KEY=VALUE"),
    ],
)
def test_headers_that_cannot_be_are_refused_before_anything_is_made(
    run: Run, path: str, words: list[str], why: bytes
) -> None:
    options = [word for text in words for word in ("--header", text)]
    done = run("put", path, *options, stdin=b"x\n", code=2)
    assert why in done.stderr
    assert not os.path.exists(path)
