"""Goal: a queue with a codec takes and gives objects, and an item that cannot be decoded stays.

Method: every way to put and to take, once each; what cannot be encoded leaves the queue as it was;
what cannot be decoded is planted as raw bytes. Planted pickles leave a mark when they are loaded.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import zstandard

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import codecs


class Job(msgspec.Struct):
    number: int


class Counting:
    """JSON that counts its calls."""

    name = "json"

    def __init__(self) -> None:
        self.encoded = self.decoded = 0
        self._json = codecs.Json()

    def encode(self, value: Any) -> bytes:
        self.encoded += 1
        return self._json.encode(value)

    def decode(self, body: bytes) -> Any:
        self.decoded += 1
        return self._json.decode(body)


def _plant(open_queue: OpenQueue, *bodies: bytes) -> None:
    with open_queue(raw=True) as raw:
        raw.put_many(bodies)


# ---- every way in and out -----------------------------------------------------------------------


def test_every_put_encodes_and_every_take_decodes(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    q.put({"a": [1, None]})
    q.push([], headers={"k": "v"})
    q.put_nowait("text", on_full="drop")
    q.try_push(3)
    q.put_many([4.5, True])
    q.enqueue_bulk(iter([None]), atomic=False)
    with q.batch() as batch:
        batch.append({})
        batch.append(8)
    wanted = [{"a": [1, None]}, [], "text", 3, 4.5, True, None, {}, 8]
    with mpqueue.inspect(q.path) as view:
        assert [r.body for r in view.items()][:3] == [b'{"a":[1,null]}', b"[]", b'"text"']
    with q.consumer() as c:
        peeked = c.peek()
        assert peeked is not None
        assert peeked.value == wanted[0]
        items = c.reserve_many(9)
        assert [item.value for item in items] == wanted
        assert items[1].headers == {"k": "v"}
        assert items[0].body == b'{"a":[1,null]}'
        assert isinstance(items[0], mpqueue.Item)
        c.rewind()
        assert [item.value for item in c.drain()] == wanted
    assert len(q) == 0


def test_get_gives_values_and_take_and_on_read_too(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    q.put_many([None, {"a": 1}, [2], 3])
    assert q.get() is None  # a value like any other
    assert q.get_nowait() == {"a": 1}
    q.task_done()
    q.task_done()
    c = q._own_consumer()
    assert c is not None
    assert c.take().value == [2]
    assert [item.value for item in c.follow("on_read") if q.seal() is None] == [3]
    assert q.join(timeout=0)


def test_a_value_is_decoded_once_and_only_if_it_is_asked_for(open_queue: OpenQueue) -> None:
    codec = Counting()
    q = open_queue(codec=codec)
    q.put_many([[1], [2]])
    assert codec.encoded == 2
    with q.consumer() as c:
        first, second = c.reserve_many(2)
        assert first.value is first.value
        assert codec.decoded == 1
        first.ack()
        assert first.value == [1]
        second.ack()
    assert codec.decoded == 1


def test_threads_that_ask_at_once_get_one_value(open_queue: OpenQueue) -> None:
    """Both are in the decoder before either is out of it."""
    both = threading.Barrier(2)

    class Slow(Counting):
        def decode(self, body: bytes) -> Any:
            both.wait()
            return super().decode(body)

    q = open_queue(codec=Slow())
    q.put([])
    values: list[Any] = []
    with q.consumer() as c, c.reserve() as item:
        threads = [threading.Thread(target=lambda: values.append(item.value)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert values[0] is values[1]


def test_without_a_codec_the_value_is_the_body(open_queue: OpenQueue) -> None:
    for q in (open_queue(), open_queue(codec="bytes"), open_queue(raw=True)):
        q.put(b"x")
        with q.consumer() as c, c.reserve() as item:
            assert item.value is item.body
            assert item.value == b"x"
        assert (q._encode, q._decode, q.options.codec) == (None, None, "bytes")


def test_a_batch_encodes_when_it_is_told_and_survives_a_refusal(open_queue: OpenQueue) -> None:
    codec = Counting()
    q = open_queue(codec=codec)
    job = {"a": 1}
    with q.batch() as batch:
        batch.append(job)
        job["a"] = 2
        with pytest.raises(TypeError):
            batch.append(object())
        batch.append(3)
    assert codec.encoded == 3
    assert [q.get(), q.get()] == [{"a": 1}, 3]


def test_a_batch_copies_what_the_codec_only_hands_on(open_queue: OpenQueue) -> None:
    q = open_queue(codec=codecs.Bytes())
    body = bytearray(b"before")
    with q.batch() as batch:
        batch.append(body)
        body[:] = b"after!"
    assert q.get() == b"before"


def test_structs_are_checked_when_they_are_decoded(open_queue: OpenQueue) -> None:
    q = open_queue(codec=codecs.Msgspec(Job))
    q.put(Job(1))
    open_queue(codec="json").put({"number": "no number"})
    assert q.get() == Job(1)
    with pytest.raises(mpqueue.CodecError, match="Expected `int`, got `str`") as error:
        q.get()
    assert isinstance(error.value.__cause__, msgspec.ValidationError)
    assert error.value.item is not None
    error.value.item.ack()


def test_arrays_lie_in_the_segment_and_outlive_everything(open_queue: OpenQueue) -> None:
    q = open_queue(codec="numpy")
    array = numpy.arange(5000, dtype="<f8").reshape(50, 100)
    q.put(array)
    with q.consumer(views=True) as c:
        with c.reserve() as item:
            value, body = item.value, memoryview(item.body)
        address = value.__array_interface__["data"][0]
    q.checkpoint()
    q.close()
    assert numpy.array_equal(value, array)
    assert not value.flags.writeable
    at = numpy.frombuffer(body, "u1").__array_interface__["data"][0]
    assert at < address < at + len(body)
    assert any(
        int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "segment-" in line or "spool" in line
    )


@pytest.mark.parametrize("codec", ["json", "msgpack", "unsafe-pickle", "json+zstd"])
def test_views_are_decoded_too(open_queue: OpenQueue, codec: str) -> None:
    q = open_queue(codec=codec)
    q.put({"a": "b" * 1000})
    with q.consumer(views=True) as c, c.reserve() as item:
        assert isinstance(item.body, memoryview)
        assert item.value == {"a": "b" * 1000}


# ---- what cannot be encoded ---------------------------------------------------------------------


def test_what_cannot_be_encoded_leaves_the_queue_as_it_was(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    q.put(1)
    before = q.stats()
    bad = object()
    calls = [
        lambda: q.put(bad),
        lambda: q.put_nowait(bad),
        lambda: q.put_many([1, 2, bad]),
        lambda: q.put_many([1, 2, bad], atomic=False),
        lambda: q.put_many([float("nan")]),
        lambda: q.put(bad, on_full="drop"),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert getattr(error.value, "accepted", 0) == 0
    with pytest.raises(TypeError), q.batch() as batch:
        batch.append(1)
        batch.append(bad)
    assert batch.seqs is None
    after = q.stats()
    assert after.next_seq == before.next_seq
    assert (after.depth, after.items_dropped) == (1, 0)


def test_an_encoder_that_makes_no_bytes_puts_nothing(open_queue: OpenQueue) -> None:
    class Text(Counting):
        def encode(self, value: Any) -> Any:
            return value

    q = open_queue(codec=Text())
    for value in ("text", 5, None):
        with pytest.raises(TypeError):
            q.put(value)
        with pytest.raises(TypeError):
            q.put_many([b"1", value])
        with pytest.raises(TypeError), q.batch() as batch:
            batch.append(value)
    assert len(q) == 0


# ---- what cannot be decoded ---------------------------------------------------------------------


def test_it_stays_and_is_reported_with_its_id(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"{not json", b"2")
    with q.consumer() as c:
        item = c.reserve()
        for _ in range(2):  # not a matter of the first time
            with pytest.raises(mpqueue.CodecError) as raised:
                _ = item.value
            error = raised.value
            assert error.item is item
            assert error.id == item.id
            assert item.id in str(error)
            assert q.path in str(error)
            assert isinstance(error.__cause__, ValueError)
        assert not item.settled
        assert (item.body, len(q)) == (b"{not json", 2)
        with c.reserve() as other:
            assert other.value == 2
        item.nack()


def test_ack_drops_it_and_nack_gives_it_back_and_skip_passes_it(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"first", b"second", b"3")
    with q.consumer() as c:
        with pytest.raises(mpqueue.CodecError) as raised:
            _ = c.reserve().value
        raised.value.item.ack()
        with pytest.raises(mpqueue.CodecError) as raised:
            _ = c.reserve().value
        seq = raised.value.item.seq
        raised.value.item.nack()
        assert c.skip() == seq
        assert c.take().value == 3
    assert (len(q), q.stats().items_skipped) == (0, 1)


def test_a_loop_can_pass_it_by_ack_inside_or_skip_outside(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"1", b"bad", b"3", b"worse", b"5")
    seen: list[object] = []
    with q.consumer() as c:
        for item in c.drain():
            try:
                seen.append(item.value)
            except mpqueue.CodecError as error:
                seen.append(error.id.rpartition(":")[2])
                item.ack()
            if len(seen) == 3:
                break
        with pytest.raises(mpqueue.CodecError):
            for item in c.drain():
                seen.append(item.value)
        c.skip()
        seen += [item.value for item in c.drain()]
    assert seen == [1, "2", 3, 3, 5]
    assert len(q) == 0


@pytest.mark.parametrize("way", ["take", "on_read"])
def test_at_most_once_does_not_ack_it(open_queue: OpenQueue, way: str) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"bad", b"2")
    with q.consumer() as c:
        with pytest.raises(mpqueue.CodecError) as raised:
            _ = c.take() if way == "take" else next(c.drain("on_read"))
        assert not raised.value.item.settled
        assert len(q) == 2
        assert c.take().value == 2
        raised.value.item.nack()
        del raised
        with c.reserve() as item:
            assert item.body == b"bad"


def test_get_reports_it_and_goes_on(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"1", b"bad", b"3")
    assert q.get() == 1
    with pytest.raises(mpqueue.CodecError) as raised:
        q.get()
    assert q.get() == 3
    q.task_done()
    q.task_done()
    with pytest.raises(ValueError, match="too many times"):
        q.task_done()
    assert len(q) == 1
    raised.value.item.ack()
    assert q.join(timeout=0)


def test_unheeded_it_is_ready_again(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"bad")
    with q.consumer() as c:
        with pytest.raises(mpqueue.CodecError) as raised:
            c.take()
        with pytest.warns(ResourceWarning, match="ready again"):
            del raised
        assert c.skip() == 1


def test_the_error_crosses_processes_without_its_item(open_queue: OpenQueue) -> None:
    q = open_queue(codec="json")
    _plant(open_queue, b"bad")
    with q.consumer() as c, pytest.raises(mpqueue.CodecError) as raised:
        c.take()
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.id, copy.item) == (str(raised.value), raised.value.id, None)
    assert raised.value.item is not None


def test_lack_of_memory_and_interrupts_are_not_the_items_fault(open_queue: OpenQueue) -> None:
    class Poor(Counting):
        fault: type[BaseException] = MemoryError

        def decode(self, body: bytes) -> Any:
            raise self.fault

    codec = Poor()
    q = open_queue(codec=codec)
    q.put(1)
    with q.consumer() as c:
        item = c.reserve()
        for codec.fault in (MemoryError, KeyboardInterrupt):
            with pytest.raises(codec.fault):
                _ = item.value
        assert not item.settled
        item.ack()


def test_an_item_in_a_cycle_with_its_value_is_collected_and_given_back(
    open_queue: OpenQueue,
) -> None:
    q = open_queue(codec="json")
    q.put([])
    with q.consumer() as c:
        item = c.reserve()
        item.value.append(item)
        del item
        with pytest.warns(ResourceWarning, match="ready again"):
            gc.collect()
        with c.reserve() as item:
            assert item.value == []


# ---- which codec a queue has --------------------------------------------------------------------


def test_the_name_is_recorded_and_another_is_refused(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(codec="json")
    q.put(1)
    assert q.options.codec == "json"
    with mpqueue.inspect(spool) as view:
        assert view.options["codec"] == "json"
    for other in ("msgpack", "bytes", "unsafe-pickle", "json+zstd", codecs.Numpy()):
        for raw in (False, True):
            with pytest.raises(mpqueue.OptionsMismatch, match="codec"):
                mpqueue.Queue(spool, codec=other, raw=raw)
    with pytest.raises(ValueError, match="fixed"):
        q.set_options(codec="msgpack")
    q.close()
    assert q.options.codec == "json"
    with pytest.raises(mpqueue.OptionsMismatch, match="codec"):
        mpqueue.Queue(spool, codec="msgpack")


@pytest.mark.parametrize(
    ("made", "other"),
    [
        (codecs.Numpy("<f4"), codecs.Numpy("<f8")),
        (codecs.Numpy("<f4"), codecs.Numpy()),
        (codecs.Msgspec(Job, schema="v1"), codecs.Msgspec(Job, schema="v2")),
        (codecs.Msgspec(Job, schema="v1"), codecs.Json()),
    ],
    ids=lambda codec: codec.name,
)
def test_a_schema_in_the_name_has_to_agree(
    open_queue: OpenQueue, spool: Path, made: Any, other: Any
) -> None:
    open_queue(codec=made)
    open_queue(codec=made)
    with pytest.raises(mpqueue.OptionsMismatch, match=made.name):
        mpqueue.Queue(spool, codec=other)
    with pytest.raises(mpqueue.OptionsMismatch, match="only when it is named"):
        mpqueue.Queue(spool)


@pytest.mark.parametrize("name", ["json", "msgpack", "numpy", "json+zstd", "bytes+zstd"])
def test_a_safe_codec_is_used_by_those_who_name_none(open_queue: OpenQueue, name: str) -> None:
    value = numpy.arange(3) if name == "numpy" else b"x" if name == "bytes+zstd" else [1]
    open_queue(codec=name).put(value)
    q = open_queue()
    q.put(value)
    assert [numpy.array_equal(q.get(), value), numpy.array_equal(q.get(), value)] == [True, True]


def test_a_recorded_codec_without_its_library_is_refused(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_queue(codec="msgpack").put(1)
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"mpqueue\[msgpack\]"):
        mpqueue.Queue(spool)
    raw = open_queue(raw=True)
    assert raw.get() == b"\x01"
    assert len([member for member in raw.members() if member.alive]) == 2


def test_a_refused_codec_leaves_no_queue_and_no_member(open_queue: OpenQueue, spool: Path) -> None:
    for codec in ("jsno", "pickle", "", "x" * 32, "\u00e9", "a\nb"):
        with pytest.raises(ValueError, match="codec"):
            mpqueue.Queue(spool, codec=codec)
    for codec in (5, object(), codecs.Json, type("Half", (), {"name": "half"})()):
        with pytest.raises(TypeError, match="name, encode"):
            mpqueue.Queue(spool, codec=codec)  # type: ignore[call-overload]
    assert not spool.exists()
    q = open_queue(codec="unsafe-pickle")
    with pytest.raises(mpqueue.OptionsMismatch) as refused:
        mpqueue.Queue(spool)
    assert len([member for member in q.members() if member.alive]) == 1
    del refused  # it kept the refused handle from being collected, and so from being closed


def test_raw_takes_and_gives_the_stored_bytes(open_queue: OpenQueue) -> None:
    raw = open_queue(codec="no codec that is known", raw=True)
    assert raw.options.codec == "no codec that is known"
    raw.put(b"1")
    with raw.batch() as batch:
        batch.append(bytearray(b"2"))
    assert [raw.get(), raw.get()] == [b"1", b"2"]


def test_the_command_line_works_on_bytes(run_python: RunPython, spool: Path) -> None:
    run_python(
        """
        import subprocess, sys
        import mpqueue
        def cli(*words, stdin=b""):
            done = subprocess.run([sys.executable, "-P", "-m", "mpqueue", *words], input=stdin,
                                  stdout=subprocess.PIPE)
            assert done.returncode == 0
            return done.stdout
        path = sys.argv[1]
        cli("init", path, "--codec", "json")
        cli("put", path, "--lines", stdin=b'{"a":1}\\n[2]\\n')
        with mpqueue.Queue(path) as q:
            assert q.get() == {"a": 1}
            q.task_done()
            q.put("three")
        assert cli("get", path, "-n", "2", "--lines") == b'[2]\\n"three"\\n'
        other = path + "2"
        cli("init", other, "--codec", "unsafe-pickle")
        cli("put", other, "--lines", stdin=b"not loaded\\n")
        assert cli("get", other, "--lines") == b"not loaded\\n"
        cli("destroy", other, "--yes")
        """,
        spool,
    )


# ---- planted pickles ----------------------------------------------------------------------------


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def _bombs(mark: Path) -> list[bytes]:
    plain = pickle.dumps(Bomb(mark))
    saved = io.BytesIO()
    numpy.save(saved, numpy.array([Bomb(mark)], dtype=object), allow_pickle=True)
    bodies = [plain, pickle.dumps(Bomb(mark), 0), saved.getvalue(), b"\xc7" + plain]
    return bodies + [zstandard.compress(body) for body in bodies]


@pytest.mark.parametrize("name", ["json", "msgpack", "numpy", "json+zstd", "numpy+zstd", "msgspec"])
def test_a_planted_pickle_is_never_loaded(open_queue: OpenQueue, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    bombs = _bombs(mark)
    q = open_queue(codec=codecs.Msgspec(Job) if name == "msgspec" else name)
    _plant(open_queue, *bombs)
    reader = q if name == "msgspec" else open_queue()
    with reader.consumer() as c:
        for item in c.drain():
            with pytest.raises(mpqueue.CodecError):
                _ = item.value
    assert not mark.exists()


def test_a_queue_that_records_pickle_is_not_opened_unless_it_is_named(
    open_queue: OpenQueue, spool: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    named = open_queue(codec="unsafe-pickle")
    _plant(open_queue, pickle.dumps(Bomb(mark)))
    for codec in (None, "json", "bytes"):
        with pytest.raises(mpqueue.OptionsMismatch, match="unsafe-pickle"):
            mpqueue.Queue(spool, codec=codec)
    with open_queue(raw=True) as raw:
        assert pickle.dumps(Bomb(mark)) == raw.get()
    assert not mark.exists()
    named.get()
    assert mark.exists(), "the bomb of these tests is a dud"


@pytest.mark.parametrize(
    "name", ["unsafe-pickle", "unsafe-pickle+zstd", "planted", "json:x", "json+zstd+zstd+zstd"]
)
def test_what_the_files_say_chooses_safe_codecs_only(
    open_queue: OpenQueue, spool: Path, name: str
) -> None:
    open_queue(codec=name, raw=True)
    with pytest.raises(mpqueue.OptionsMismatch, match="only when it is named"):
        mpqueue.Queue(spool)
