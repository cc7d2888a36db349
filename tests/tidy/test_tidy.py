"""Goal: the house rules that a program can check. Method: read the tree as text.

Each rule names the file and line that breaks it, so a failure is a to-do list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpqueue
from mpqueue.cli import VERBS, common
from mpqueue.reader import Counts, Record

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("mpqueue", "tests", "stress", "benchmarks", "docs", ".ci")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".sh", ".md", ".toml", ".txt", ""}
GENERATED = {"__pycache__", "results"}
COLUMNS = 100
EXITS = {
    "OK",
    "EMPTY",
    "USAGE",
    "SEALED",
    "BUSY",
    "DAMAGE",
    "FULL",
    "REFUSED",
    "UNDECODABLE",
    "DEAD",
    "IO_ERROR",
    "TIMEOUT",
}
LINES = 800

# Spelled in pieces, so that this file does not break its own rule.
FOREIGN = re.compile(
    "|".join(
        (
            "/ro" + r"ot/\.?\w",
            r"(?<![\w.])/wo" + r"rk/\w",
            "/ho" + r"me/\w",
            "pythonho" + "sted",
            r"pypi\." + "org",
            r"debian\." + "org",
            r"TO" + r"DO\b|FIX" + r"ME\b",
        )
    )
)


def _files() -> Iterator[Path]:
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in SUFFIXES:
            yield path
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT).parts
            if path.is_file() and path.suffix in SUFFIXES and not GENERATED.intersection(inside):
                yield path


def _text_files() -> Iterator[tuple[Path, str]]:
    for path in sorted(set(_files())):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image of a queue has no suffix either
        if "\0" not in text:
            yield path, text


def _offences(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path, text in _text_files():
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    return found


def _documents() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text() for page in pages)


def test_text_is_ascii() -> None:
    assert not _offences(re.compile(r"[^\x00-\x7f]"))


def test_lines_fit_the_page() -> None:
    too_long = [
        offence
        for offence in _offences(re.compile(f".{{{COLUMNS + 1}}}"))
        if not re.search(r"\.md:\d+: \|", offence)  # a table row cannot be broken
    ]
    assert not too_long


def test_files_hold_one_idea() -> None:
    long_files = [
        f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines"
        for path, text in _text_files()
        if len(text.splitlines()) > LINES
    ]
    assert not long_files


def test_no_paths_of_a_machine_and_no_registry_hosts() -> None:
    assert not _offences(FOREIGN)


def test_python_stays_out_of_the_core() -> None:
    core = [
        path.name
        for path in (ROOT / "mpqueue/native").glob("*.[ch]")
        if not path.name.startswith("module") and "Python.h" in path.read_text()
    ]
    assert not core


def test_every_native_file_is_built() -> None:
    """Two lists of sources drift; what CMake compiles is what lies there."""
    listed = set(re.findall(r"\b\w+\.c\b", (ROOT / "mpqueue/native/CMakeLists.txt").read_text()))
    assert listed == {path.name for path in (ROOT / "mpqueue/native").glob("*.c")}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_is_documented(verb: str) -> None:
    assert re.search(rf"`mpqueue {verb}\b|^mpqueue {verb}\b", _documents(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(mpqueue.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", _documents())


RECORDS = [mpqueue.Options, mpqueue.Stats, mpqueue.Histogram, mpqueue.Member, mpqueue.Repair]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_documented_in_a_row_of_its_own(record: type) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs/python.md").read_text(), re.MULTILINE)
    rows = [re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in tables]
    assert list(record.__annotations__) in rows


@pytest.mark.parametrize("record", [Record, Counts], ids=lambda record: record.__name__)
def test_every_field_of_an_inspection_is_documented(record: type) -> None:
    page = (ROOT / "docs/python.md").read_text()
    assert [name for name in record._fields if f"`{name}`" not in page] == []


def test_every_attribute_of_an_exception_is_documented() -> None:
    page = (ROOT / "docs/python.md").read_text()
    for name in mpqueue.exceptions.__all__:
        for attribute in vars(getattr(mpqueue, name)).get("__annotations__", {}):
            assert f"`{attribute}`" in page, f"{name}.{attribute}"


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    codes = {value for name, value in vars(common).items() if name.isupper() and name in EXITS}
    assert len(codes) == len(EXITS)
    assert [code for code in codes if not re.search(rf"^\| {code} \|", page, re.MULTILINE)] == []
