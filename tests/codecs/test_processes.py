"""Goal: the codec goes where the handle goes, and code for the standard queues runs unchanged.

Method: real interpreters, every start method; each producer's items arrive whole and in order. The
entry point is one of a package that lies on the path.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

import children
import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import codecs

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(autouse=True)
def _children_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(__file__).parent))


CALL = """
import sys, warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # forks under threads
import children
getattr(children, sys.argv[1])(*sys.argv[2:])
"""


@pytest.mark.parametrize("name", children.MAKERS)
@pytest.mark.parametrize("method", METHODS)
def test_children_put_what_their_parent_gets(
    run_python: RunPython, spool: Path, method: str, name: str
) -> None:
    run_python(CALL, "processes", method, name, spool)


@pytest.mark.parametrize("name", ["msgspec", "unsafe-pickle"])
@pytest.mark.parametrize("method", METHODS)
def test_pools_put_what_their_parent_gets(
    run_python: RunPython, spool: Path, method: str, name: str
) -> None:
    run_python(CALL, "pools", method, name, spool)


@pytest.mark.parametrize("method", METHODS)
def test_a_joinable_queue_is_swapped_by_one_line(
    run_python: RunPython, spool: Path, method: str
) -> None:
    for ours in ("", "ours"):
        run_python(
            CALL.replace("(*sys.argv[2:])", "(*sys.argv[2:4], ours=bool(sys.argv[4]))"),
            "joinable",
            method,
            spool,
            ours,
        )


@pytest.mark.parametrize("method", METHODS)
def test_an_item_that_a_child_cannot_decode_stays(
    run_python: RunPython, spool: Path, method: str
) -> None:
    run_python(CALL, "broken", method, spool)


def test_a_swapped_queue_has_the_names_of_the_standard_one() -> None:
    theirs = {name for name in dir(multiprocessing.JoinableQueue()) if not name.startswith("_")}
    assert theirs - set(dir(mpqueue.Queue)) == set()


def test_a_handle_pickles_with_its_codec(open_queue: OpenQueue) -> None:
    for number, codec in enumerate([None, "json", codecs.Json(), codecs.Msgspec(list[int])]):
        q = open_queue(codec=codec) if number else open_queue(codec="json")
        with pickle.loads(pickle.dumps(q)) as copy:
            assert type(copy._codec) is type(q._codec)
            copy.put([number])
        assert q.get() == [number]
        q.task_done()
        q.close()
    with open_queue(raw=True) as raw, pickle.loads(pickle.dumps(raw)) as copy:
        copy.put(b"[]")
    assert open_queue().get() == []


# ---- entry points -------------------------------------------------------------------------------

PACKAGE = """
class Rot13:
    name = "rot13"
    def encode(self, value): return value.swapcase().encode()
    def decode(self, body): return bytes(body).decode().swapcase()

made = Rot13()
Wrong = Rot13
def broken(): return 5
"""
POINTS = """
[mpqueue.codecs]
rot13 = rotten:Rot13
misnamed = rotten:made
broken = rotten:broken
absent = rotten_not:made
"""


def _install(where: Path, package: str, points: str) -> None:
    info = where / f"{package}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)
    (where / f"{package}.py").write_text(PACKAGE)


def test_codecs_of_other_packages_are_found_by_their_entry_points(
    run_python: RunPython, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path / "one", "rotten", POINTS)
    _install(tmp_path / "two", "others", "[mpqueue.codecs]\ntwice = others:made\n")
    _install(tmp_path / "three", "thirds", "[mpqueue.codecs]\ntwice = thirds:made\n")
    monkeypatch.setenv("PYTHONPATH", ":".join(str(tmp_path / n) for n in ("one", "two", "three")))
    run_python(
        """
        import pickle, sys
        import mpqueue
        path = sys.argv[1]
        q = mpqueue.Queue(path, codec="rot13")
        q.put("Text")
        assert next(iter(mpqueue.inspect(path).items())).body == b"tEXT"
        assert q.get() == "Text"
        copy = pickle.loads(pickle.dumps(q))
        copy.put("More")
        assert q.get() == "More"
        assert mpqueue.codecs.lookup("rot13+zstd").name == "rot13+zstd"
        for name, kind, text in [
            ("misnamed", ValueError, "another name"), ("broken", TypeError, "name, encode"),
            ("twice", ValueError, "others:made"), ("absent", ImportError, "rotten_not"),
            ("never", ValueError, "entry points mpqueue.codecs"),
        ]:
            try:
                mpqueue.Queue(path, codec=name)
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        try:
            mpqueue.Queue(path)  # what the files say imports nothing
        except mpqueue.OptionsMismatch as error:
            assert "only when it is named" in str(error)
        else:
            raise AssertionError
        """,
        spool,
    )
