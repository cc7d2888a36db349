"""The command line's own parts: units, formats on a pipe, the argument tree. No queue involved."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from mpqueue import exceptions
from mpqueue.cli import VERBS, build_parser, common, records


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("10s", 10.0), ("5m", 300.0), ("1h", 3600.0), ("0.5", 0.5), ("2d", 172800.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert common.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "number"),
    [("16M", 1 << 24), ("64K", 65536), ("1G", 1 << 30), ("4096", 4096), ("1.5KiB", 1536)],
)
def test_sizes(text: str, number: int) -> None:
    assert common.size(text) == number


@pytest.mark.parametrize("text", ["", "-1", "ten", "5 parsecs", "1e9"])
def test_nonsense_is_refused(text: str) -> None:
    for convert in (common.duration, common.size, common.whole, common.durability):
        with pytest.raises(argparse.ArgumentTypeError):
            convert(text)


def test_durability_with_an_interval() -> None:
    given = {"durability": common.durability("interval:50ms")}
    assert common.option_values(given) == {"durability": "interval", "interval": 0.05}
    assert common.option_values({"durability": common.durability("sync")}) == {"durability": "sync"}
    with pytest.raises(argparse.ArgumentTypeError):
        common.durability("group:50ms")


def test_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPQUEUE_SEGMENT_SIZE", "64K")
    monkeypatch.setenv("MPQUEUE_CAPACITY", "none")
    assert common.environment_options() == {"segment_size": 65536, "capacity": None}
    monkeypatch.setenv("MPQUEUE_RETAIN", "soon")
    with pytest.raises(common.UsageError, match="MPQUEUE_RETAIN"):
        common.environment_options()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.Sealed("x"), 3),
        (exceptions.ConsumerBusy(11, "x"), 4),
        (exceptions.Corrupt("x"), 5),
        (exceptions.Full("x"), 6),
        (exceptions.NotAQueue("x"), 7),
        (exceptions.FormatError("x"), 7),
        (exceptions.Poisoned(5, "x"), 74),
        (exceptions.NoSpace(28, "x"), 74),
        (OSError(5, "x"), 74),
        (exceptions.LockTimeout(110, "x"), 124),
        (common.UsageError("x"), 2),
        (RuntimeError("a bug"), -1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert common.exit_code(error) == code


def read(data: bytes, form: str) -> list[records.Entry]:
    """What comes out of a pipe into which `data` is written."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        return [entry for batch in records.read_batches(reading, form) for entry in batch]
    finally:
        os.close(reading)
        writer.join()


def test_lines_keep_every_byte_but_the_separator() -> None:
    data = b"one\r\n\n\xff\x00two\nlast"
    assert [e.body for e in read(data, "lines")] == [b"one\r", b"", b"\xff\x00two", b"last"]
    assert [e.body for e in read(b"a\nb\0\0c", "null")] == [b"a\nb", b"", b"c"]
    assert read(b"", "lines") == []


def test_a_line_longer_than_a_read_is_one_item() -> None:
    data = b"x" * (3 * records.CHUNK) + b"\nshort\n"
    assert [len(entry.body) for entry in read(data, "lines")] == [3 * records.CHUNK, 5]


def test_a_lone_line_is_given_out_before_the_input_ends() -> None:
    reading, writing = os.pipe()
    batches = records.read_batches(reading, "lines")
    os.write(writing, b"first\nsec")
    assert [entry.body for entry in next(batches)] == [b"first"]
    os.write(writing, b"ond\n")
    assert [entry.body for entry in next(batches)] == [b"second"]
    os.close(writing)
    assert next(batches, None) is None
    os.close(reading)


ITEM = SimpleNamespace(seq=7, id="u:1:7", enqueued_at=1.5, attempts=1, headers={"k": "v"})


@pytest.mark.parametrize("body", [b"", b"text\nwith lines", "h\u00e9".encode(), b"\xff\xfe\x00"])
@pytest.mark.parametrize("form", ["jsonl", "u32", "null"])
def test_what_is_written_is_read_back(body: bytes, form: str) -> None:
    if form == "null" and b"\0" in body:
        pytest.skip("the format cannot hold it")
    out = io.BytesIO()
    for _ in range(3):
        records.write_item(out, ITEM, body, form)
    entries = read(out.getvalue(), form)
    assert [entry.body for entry in entries] == [body] * 3
    assert all(entry.headers == ({"k": "v"} if form == "jsonl" else None) for entry in entries)


@pytest.mark.parametrize("data", [b"\x05\0\0\0abc", b"\x01\0", b"\xff\xff\xff\xffabc"])
def test_broken_frames_are_refused(data: bytes) -> None:
    with pytest.raises(common.UsageError):
        read(data, "u32")


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"body": 5}', b"nonsense", b'{"body_base64":"?"}']
)
def test_broken_json_lines_are_refused_by_number(line: bytes) -> None:
    with pytest.raises(common.UsageError, match="line 2"):
        read(b'{"body": "good"}\n' + line + b"\n", "jsonl")


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ('{"k": 1}', "'k' is no string"),
        ('{"k": null}', "'k' is no string"),
        ('{"k": {"a": "b"}}', "'k' is no string"),
        ('["k", "v"]', "no object of strings"),
        ("5", "no object of strings"),
        ('""', "no object of strings"),
        ('{"k": "\\ud800"}', "no valid text"),
        (f'{{"k": "{"v" * 65528}"}}', "more than 65,528 bytes"),
    ],
)
def test_headers_that_are_no_strings_are_refused_by_number(headers: str, problem: str) -> None:
    """They used to be put as their own text: 1 as "1", null as "None"."""
    line = b'{"body": "x", "headers": %s}\n' % headers.encode()
    entries = []
    reading, writing = os.pipe()
    os.write(writing, b'{"body": "before", "headers": {}}\n')
    threading.Thread(target=lambda: (os.write(writing, line), os.close(writing))).start()
    with pytest.raises(common.UsageError, match=f"line 2 .*{problem}"):
        for batch in records.read_batches(reading, "jsonl"):
            entries += batch
    os.close(reading)
    assert entries == [records.Entry(b"before", None)]


@pytest.mark.parametrize(
    ("form", "data", "before"),
    [
        ("jsonl", b'{"body": "a"}\n{"body": "b"}\nnonsense\n{"body": "c"}\n', [b"a", b"b"]),
        ("u32", b"\x01\0\0\0a\xff\xff\xff\xffb", [b"a"]),
        ("u32", b"\x01\0\0\0a\x05\0\0\0b", [b"a"]),
    ],
)
def test_what_is_good_before_the_bad_is_not_lost(
    form: str, data: bytes, before: list[bytes]
) -> None:
    """Also when both came with one read."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    bodies = []
    with pytest.raises(common.UsageError):
        for batch in records.read_batches(reading, form):
            bodies += [entry.body for entry in batch]
    os.close(reading)
    assert bodies == before


def test_every_verb_has_help_and_a_module() -> None:
    text = build_parser().format_help()
    for verb, summary in VERBS.items():
        assert verb in text
        assert summary.split(",")[0].split()[0] in text


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys, mpqueue.cli\n"
        "try: mpqueue.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'asyncio', 'multiprocessing', 'xxhash', 'mpqueue.reader'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "verbs = [m for m in sys.modules if m.startswith('mpqueue.cli.')]\n"
        "sys.exit(f'{loaded} {verbs}' if loaded or verbs != ['mpqueue.cli.common'] else 0)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
