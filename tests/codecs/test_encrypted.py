"""Goal: nothing but headers can be read without the key, and a key that is not the queue's harms
nothing.

Method: files are searched for plaintext and hashed before and after; every stored item's salt and
nonce are collected over processes, forks and restored copies; bytes are changed with and without
making the frame's hash fit again. One test decrypts with nothing but docs/format.md.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import hmac
import os
import pickle
import shutil
import sqlite3
import struct
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import codecs, layout
from mpqueue.outbox import Relay
from mpqueue.reader import verify

aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")

KEYS = {id: hashlib.sha256(b"key %d" % id).digest() for id in range(1, 20)}
SECRET = "the plaintext that nobody may find"


def aes(*ids: int, inner: Any = "json", current: int | None = None) -> codecs.Aes[Any]:
    return codecs.Aes(inner, keys={id: KEYS[id] for id in ids}, current=current or ids[-1])


def _contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@contextmanager
def _untouched(path: Path) -> Iterator[None]:
    before = _contents(path)
    yield
    assert _contents(path) == before


def _bodies(path: Path) -> list[bytes]:
    with mpqueue.inspect(path) as view:
        return [record.body for record in view.items()]


def _values(queue: mpqueue.Queue[Any]) -> list[Any]:
    """Of all items, which stay."""
    with queue.consumer() as consumer:
        items = consumer.reserve_many(100, timeout=0)
        consumer.rewind()
        return [item.value for item in items]


# ---- what lies in the files ---------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["json", "json+zstd"])
def test_no_file_holds_plaintext_while_open_and_when_closed(
    open_queue: OpenQueue, spool: Path, inner: str
) -> None:
    q = open_queue(codec=aes(1, inner=inner))
    values = [{"text": SECRET, "number": number} for number in range(6)]
    q.put(values[0], headers={"route": "plain as documented"})
    q.put_nowait(values[1])
    q.put_many(values[2:4])
    with q.batch() as batch:
        for value in values[4:]:
            batch.append(value)
    assert _values(q) == values

    def searched() -> None:
        for name, data in _contents(spool).items():
            assert SECRET.encode() not in data, name
            assert KEYS[1] not in data, name

    searched()
    assert any(b"plain as documented" in data for data in _contents(spool).values())
    q.checkpoint()
    q.close()
    searched()
    assert not verify(spool, deep=True).damage, "verify needs no key"


def test_dead_letters_hold_no_plaintext_and_what_failed_does_not_quote_it(
    open_queue: OpenQueue, spool: Path
) -> None:
    q = open_queue(codec=aes(1), max_attempts=1)
    q.put(SECRET)
    with q.consumer() as consumer:
        with pytest.raises(LookupError), consumer.reserve(0) as item:
            raise LookupError(f"nobody knows {item.value}")
        assert consumer.reserve(0) is None
    (letter,) = q.dead
    assert q.dead.value(letter) == SECRET
    assert letter.last_failure == "LookupError"
    q.flush()
    for file in spool.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file


def test_equal_items_and_equal_keys_look_different_everywhere(tmp_path: Path) -> None:
    bodies = set()
    for name in ("one", "two"):
        with mpqueue.Queue(tmp_path / name, codec=aes(1)) as q:
            q.put_many([SECRET] * 10)
            bodies |= {body[8:] for body in _bodies(tmp_path / name)}
            uuid = q.uuid
            with pytest.raises(ValueError, match="not encrypted with this key 1 for this queue"):
                aes(1).bind("0" * 32).decode(_bodies(tmp_path / name)[0])
        assert aes(1).bind(uuid).decode(_bodies(tmp_path / name)[0]) == SECRET
        mpqueue.destroy(tmp_path / name)
    assert len(bodies) == 20


def test_the_form_is_the_documented_one(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue(codec=aes(7))
    q.put(SECRET)
    (body,) = _bodies(spool)
    uuid = bytes.fromhex(q.uuid)

    def hkdf(salt: bytes, info: bytes, length: int) -> bytes:
        prk = hmac.digest(salt, KEYS[7], "sha256")
        return hmac.digest(prk, info + b"\x01", "sha256")[:length]

    form, id, salt, nonce = struct.unpack_from("<II16s12s", body)
    assert (form, id) == (1, 7)
    key = hkdf(uuid + salt, b"mpqueue aes-256-gcm 1", 32)
    covered = body[:36] + uuid + b"json+aes"
    assert aead.AESGCM(key).decrypt(nonce, body[36:], covered) == b'"%s"' % SECRET.encode()
    assert q._keys()[2] == ((7, hkdf(uuid, b"mpqueue key check 7", 16)),)
    meta = layout.META_SLOT.unpack((spool / "meta").read_bytes())
    entry = layout.KEY.unpack(meta["keys"])
    assert (meta["keys_count"], entry["id"], entry["check"]) == (1, 7, q._keys()[2][0][1])
    assert len(body) == len(SECRET) + 2 + 52


def test_the_documented_example_runs(
    run_python: RunPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/codecs.md").read_text()
    example = page.partition("## Encryption")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    assert "4000 0000" in run_python(example + "\nmpqueue.destroy('orders')")


@pytest.mark.parametrize("item", [b"", bytearray(b"x"), memoryview(b"abcdef")[::2]])
def test_what_bytes_take_encrypted_bytes_take(open_queue: OpenQueue, item: Any) -> None:
    q = open_queue(codec=aes(1, inner="bytes"))
    q.put(item)
    assert q.get() == bytes(item)
    with pytest.raises(TypeError, match="bytes-like"):
        q.put("text")


def test_views_are_decrypted(open_queue: OpenQueue) -> None:
    q = open_queue(codec=aes(1))
    q.put([SECRET])
    with q.consumer(views=True) as consumer, consumer.reserve() as item:
        assert item.value == [SECRET]


# ---- nonces -------------------------------------------------------------------------------------


def _nonces(path: Path) -> list[tuple[bytes, bytes]]:
    return [(body[8:24], body[24:36]) for body in _bodies(path)]


def test_no_nonce_comes_twice_in_processes_forks_threads_and_restored_copies(
    open_queue: OpenQueue, run_python: RunPython, spool: Path, tmp_path: Path
) -> None:
    script = """
        import os, sys, mpqueue
        from mpqueue import codecs
        keys = {1: bytes.fromhex(sys.argv[2])}
        q = mpqueue.Queue(sys.argv[1], codec=codecs.Aes("json", keys=keys))
        q.put("before")
        pid = os.fork()
        q.put_many(["after"] * 20)
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    """
    q = open_queue(codec=aes(1))
    q.put("a session begins")
    for _ in range(2):
        run_python(script, spool, KEYS[1].hex())
    threads = [threading.Thread(target=q.put_many, args=([0] * 50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = _nonces(spool)
    assert len(found) == 1 + 2 * 41 + 200
    # The power goes: whatever this process knew is gone, and the files go on from an older state.
    seen = set(found)
    for cut in range(3):
        copy_of = tmp_path / f"cut{cut}"
        shutil.copytree(spool, copy_of)
        (copy_of / "control").unlink()
        with mpqueue.Queue(copy_of, codec=aes(1)) as restored:
            assert restored.uuid == q.uuid
            restored.put_many([0] * 20)
        new = [pair for pair in _nonces(copy_of) if pair not in seen]
        assert len(new) == 20
        found += new
        shutil.rmtree(copy_of)
    assert len(set(found)) == len(found)
    salts = [salt for salt, _ in found]
    assert len(set(salts)) == 1 + 2 * 2 + 3, "one a process, forked children and copies included"


def test_a_session_ends_before_nonces_can_be_expected_to_meet(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpqueue.codecs.encrypted.SESSION", 10)
    monkeypatch.setattr("mpqueue.codecs.encrypted._KEPT", 2)
    q = open_queue(codec=aes(1))
    q.put_many(list(range(35)))
    assert len({salt for salt, _ in _nonces(spool)}) == 4
    assert _values(q) == list(range(35))


# ---- wrong and missing keys ---------------------------------------------------------------------


@pytest.fixture(params=["closed", "crashed"])
def encrypted(request: pytest.FixtureRequest, spool: Path) -> Path:
    """A queue of keys 1 and 2; "crashed": the next open would recover it."""
    with mpqueue.Queue(spool, codec=aes(1), segment_size=1 << 20) as q:
        q.put(SECRET)
    with mpqueue.Queue(spool, codec=aes(1, 2)) as q:
        q.put(SECRET)
    if request.param == "crashed":
        (spool / "control").unlink()
    return spool


def _wrong(id: int) -> codecs.Aes[Any]:
    return codecs.Aes("json", keys={1: KEYS[1], id: KEYS[9]}, current=id)


@pytest.mark.parametrize(
    ("codec", "kind", "word"),
    [
        (_wrong(2), mpqueue.KeyMismatch, "the key given as 2 is not the key 2"),
        (aes(1), mpqueue.KeyMismatch, "its newest key is 2, and the keys given are 1"),
        (aes(1, 3), mpqueue.KeyMismatch, "its newest key is 2"),
        (None, mpqueue.KeyMismatch, "items are encrypted"),
        ("json+aes", mpqueue.KeyMismatch, "needs its keys"),
        ("json", mpqueue.OptionsMismatch, "json\\+aes"),
        (aes(2, inner="bytes"), mpqueue.OptionsMismatch, "json\\+aes"),
    ],
)
def test_a_wrong_or_missing_key_refuses_at_open_and_changes_no_byte(
    encrypted: Path, codec: Any, kind: type[Exception], word: str
) -> None:
    with _untouched(encrypted), pytest.raises(kind, match=word):
        mpqueue.Queue(encrypted, codec=codec)
    with mpqueue.Queue(encrypted, codec=aes(1, 2)) as q:
        assert _values(q) == [SECRET, SECRET]
        assert q.stats().lost_items == 0


def test_the_queue_that_is_opened_counts_not_the_one_that_was_looked_at(
    encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be replaced between the look and the open."""
    monkeypatch.setattr(mpqueue.Queue, "_judge", lambda self, path: None)
    for codec in (_wrong(2), None):
        with pytest.raises(mpqueue.KeyMismatch):
            mpqueue.Queue(encrypted, codec=codec)
    gc.collect()
    monkeypatch.undo()
    with mpqueue.Queue(encrypted, codec=aes(1, 2)) as q:
        assert q.stats().members_alive == 1, "who was refused has left"


@pytest.mark.parametrize("slot", [0, layout.PAGE])
def test_either_copy_of_meta_tells_the_keys(encrypted: Path, slot: int) -> None:
    data = bytearray((encrypted / "meta").read_bytes())
    data[slot : slot + layout.PAGE] = bytes(layout.PAGE)
    (encrypted / "meta").write_bytes(data)
    with _untouched(encrypted), pytest.raises(mpqueue.KeyMismatch, match="not the key 2"):
        mpqueue.Queue(encrypted, codec=_wrong(2))


def test_raw_needs_no_key_and_leaves_the_list_of_keys_alone(encrypted: Path) -> None:
    with mpqueue.Queue(encrypted, raw=True) as q:
        assert [id for id, _ in q._keys()[2]] == [1, 2]
        assert all(len(body) == len(SECRET) + 54 for body in _values(q))


def test_an_outbox_puts_no_plaintext_into_an_encrypted_queue(encrypted: Path) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for how in ({"raw": True}, {"codec": aes(1, 2)}):
        with mpqueue.Queue(encrypted, **how) as q, pytest.raises(ValueError, match="rows hold"):
            Relay(connection, q)
    connection.close()


# ---- rotation -----------------------------------------------------------------------------------


def test_old_items_are_read_with_old_keys_until_those_are_taken_away(
    open_queue: OpenQueue, spool: Path
) -> None:
    open_queue(codec=aes(1)).put("one")
    open_queue(codec=aes(1, 2)).put("two")
    open_queue(codec=aes(1, 2, current=1)).put("one again")  # who was not told yet
    q = open_queue(codec=aes(2))
    assert [struct.unpack_from("<I", body, 4)[0] for body in _bodies(spool)] == [1, 2, 1]
    with q.consumer() as consumer:
        first, second, _ = consumer.reserve_many(3)
        with pytest.raises(mpqueue.CodecError, match=f"item {first.id} .* key 1: .* are 2") as info:
            _ = first.value
        assert isinstance(info.value.__cause__, mpqueue.KeyMismatch)
        assert second.value == "two"
    assert _values(open_queue(codec=aes(1, 2))) == ["one", "two", "one again"]
    assert q.stats().lost_items == q.stats().loss_events == 0


def test_one_of_two_that_record_a_key_at_once_judges_by_the_others(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked at an empty list; the second one must not slip in beside the first."""
    with mpqueue.Queue(spool, codec="json+aes", raw=True, segment_size=1 << 20):
        pass
    real = mpqueue.Queue._add_key

    def late(self: Any, newest: Any, id: int, check: bytes) -> bool:
        monkeypatch.setattr(mpqueue.Queue, "_add_key", real)
        open_queue(codec=aes(1)).put("first")
        return real(self, newest, id, check)

    monkeypatch.setattr(mpqueue.Queue, "_add_key", late)
    with pytest.raises(mpqueue.KeyMismatch, match="newest key is 1"):
        open_queue(codec=aes(2))
    assert [id for id, _ in open_queue(raw=True)._keys()[2]] == [1]


def test_the_newest_sixteen_keys_are_recorded(open_queue: OpenQueue) -> None:
    for id in range(1, 19):
        q = open_queue(codec=aes(*range(1, id + 1)))
        q.put(id)
    assert [id for id, _ in q._keys()[2]] == list(range(3, 19))
    assert _values(q) == list(range(1, 19))


# ---- bytes that were changed --------------------------------------------------------------------


def _change(path: Path, offset_in_body: int, rehash: bool) -> int:
    """Flips a bit of the first item's payload; its seq."""
    with mpqueue.inspect(path) as view:
        record = next(iter(view.items()))
        seed = layout.header_seed(view.meta.hash_seed, record.generation, record.offset)
    file = path / f"segment-{record.generation:012}"
    data = bytearray(file.read_bytes())
    start = record.offset + layout.FRAME_HEADER
    data[start + offset_in_body] ^= 1
    if rehash:
        body = bytes(data[start : start + len(record.body)])
        hashed = xxhash.xxh64_intdigest(body, (seed + record.seq * layout.SEED_SEQ) % (1 << 64))
        struct.pack_into("<Q", data, record.offset + 40, hashed)
    file.write_bytes(data)
    return record.seq


@pytest.mark.parametrize("place", [0, 4, 8, 24, 36, -1])
def test_a_flipped_bit_is_damage_and_one_with_a_hash_that_fits_is_a_codec_error(
    spool: Path, place: int
) -> None:
    for rehash in (False, True):
        with mpqueue.Queue(spool, codec=aes(1)) as q:
            q.put_many([SECRET, "next"])
            place = place if place >= 0 else len(SECRET) + 2 + 52 - 1
        seq = _change(spool, place, rehash)
        with mpqueue.Queue(spool, codec=aes(1)) as q, q.consumer() as consumer:
            if rehash:
                item = consumer.reserve(0)
                assert item is not None
                with pytest.raises(mpqueue.CodecError, match=item.id) as info:
                    _ = item.value
                assert info.value.item is item
                item.nack()
                assert consumer.skip() == seq
            else:
                with pytest.raises(mpqueue.Corrupt):
                    consumer.reserve(0)
            left = consumer.reserve(0)
            assert left is not None
            assert left.value == "next"
            left.ack()
            stats = q.stats()
            assert (stats.lost_items, stats.items_skipped) == ((0, 1) if rehash else (1, 0))
        assert rehash != verify(spool).damage or not rehash
        mpqueue.destroy(spool)


# ---- keys do not show ---------------------------------------------------------------------------


def _shows_a_key(text: str | bytes) -> bool:
    data = text if isinstance(text, bytes) else text.encode()
    key = KEYS[1]
    return any(form in data for form in (key, key.hex().encode(), repr(key).encode()))


def test_keys_show_in_no_repr_message_or_traceback(spool: Path) -> None:
    codec = aes(1)
    with mpqueue.Queue(spool, codec=codec) as q:
        q.put(1)
        for thing in (codec, codec.ring, q, codec.bind(q.uuid), vars(codec), vars(codec.ring)):
            assert not _shows_a_key(repr(thing) + str(thing))
    failing = [
        lambda: mpqueue.Queue(spool, codec=_wrong(1)),
        lambda: mpqueue.Queue(spool, codec=aes(2)),
        lambda: codecs.Aes(keys={1: KEYS[1] + b"x"}),
        lambda: codecs.Aes(keys={1: KEYS[1].hex()}),  # type: ignore[dict-item]
        lambda: codecs.Aes(keys={-1: KEYS[1]}),
        lambda: codecs.Aes(keys={1: KEYS[1], 2: KEYS[2]}),
        lambda: codecs.Aes(keys={1: KEYS[1]}, current=5),
        lambda: codecs.Aes(keys={1: KEYS[1]}, key_file="x"),
        lambda: codecs.Aes(),
        lambda: codecs.Aes(keys={}),
        lambda: codec.encode(1),
        lambda: codec.decode(b""),
        lambda: codecs.Zstd(codec),
    ]
    for call in failing:
        with pytest.raises(Exception, match=r".{20}") as info:
            call()
        assert not _shows_a_key("".join(traceback.format_exception(info.value)))
    mpqueue.destroy(spool)


def test_keys_do_not_pickle(open_queue: OpenQueue) -> None:
    codec = aes(1)
    for thing in (codec, codec.ring, open_queue(codec=codec)):
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="key_file"):
                way(thing)


# ---- key files ----------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# of the spool\n\n1 {KEYS[1].hex()}\n2\t{KEYS[2].hex().upper()}\n")
    return path


def test_a_queue_with_a_key_file_pickles_its_path(
    open_queue: OpenQueue, key_file: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(key_file.parent)
    codec = codecs.Aes("json", key_file="keys")
    assert codec.ring.current == 2
    assert codec == aes(1, 2) != aes(1, 2, current=1)
    pickled = pickle.dumps(open_queue(codec=codec))
    assert not _shows_a_key(pickled)
    assert os.fsencode(key_file) in pickled
    monkeypatch.chdir("/")
    run_python(
        "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).put('of a child')",
        pickled.hex(),
    )
    with pickle.loads(pickled) as again:
        assert again.get() == "of a child"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no key in this file"),
        ("# 1 00\n", "no key in this file"),
        (f"1 {KEYS[1].hex()}\n1 {KEYS[2].hex()}\n", "line 2 has key 1 for the second time"),
        (f"1 {KEYS[1].hex()[2:]}\n", "line 1 is no id"),
        (f"{KEYS[1].hex()}\n", "line 1 is no id"),
        (f"4294967296 {KEYS[1].hex()}\n", "0 to 4294967295"),
        ("\u00fc\n", "line 1 is no id"),
    ],
)
def test_a_key_file_that_cannot_be_is_refused_without_showing_it(
    tmp_path: Path, text: str, word: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text.encode())
    with pytest.raises(ValueError, match=word) as info:
        codecs.Aes(key_file=path)
    assert not _shows_a_key(str(info.value))
    with pytest.raises(FileNotFoundError):
        codecs.Aes(key_file=tmp_path / "none")


# ---- imports ------------------------------------------------------------------------------------


def test_cryptography_is_imported_by_its_codec_alone(run_python: RunPython, spool: Path) -> None:
    run_python(
        """
        import sys, mpqueue
        from mpqueue import codecs
        with mpqueue.Queue(sys.argv[1], codec="json") as q:
            q.put(1)
        codecs.Aes
        assert not [name for name in sys.modules if name.startswith("cryptography")]
        sys.modules["cryptography"] = None
        try:
            codecs.Aes(keys={1: bytes(32)})
        except ImportError as error:
            assert "mpqueue[crypto]" in str(error), error
        else:
            raise AssertionError
        """,
        spool,
    )
