"""Puts with a key: accepted once while the key is remembered, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue.aio import AsyncQueue
from mpqueue.reader import verify
from mpqueue.reader.stats import read_stats


def drain(queue: mpqueue.Queue) -> list[bytes]:
    bodies = []
    with queue.consumer() as consumer:
        while (item := consumer.reserve(0)) is not None:
            bodies.append(item.body)
            item.ack()
        consumer.checkpoint()
    return bodies


def reboot(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MPQ_BOOT_ID", name)


def test_the_first_seq_is_told_again(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=100)
    other = open_queue()
    first = q.put(b"one", key="order-1")
    assert other.put(b"another body", key=b"order-1") == first
    assert q.put_nowait(b"", key="order-1") == first
    second = q.put(b"two", key="order-2", headers={"kind": "mail"})
    assert second != first
    assert q.put(b"no key") != first
    with mpqueue.inspect(q.path) as view:
        seen = read_stats(view)
    for stats in (q.stats(), seen):
        assert stats is not None
        assert (stats.items_duplicate, stats.keys_remembered) == (2, 2)
        assert stats.disk_bytes == q.stats().disk_bytes
    assert drain(q) == [b"one", b"two", b"no key"]
    assert q.put(b"", key="order-1") == first, "also when it has been consumed"
    assert len(q) == 0


def test_items_tell_their_keys(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=10)
    q.put(b"one", key="gr\u00f6\u00dfe", headers={"a": "b"})
    q.put(b"two")
    with q.consumer() as consumer:
        one, two = consumer.reserve_many(2)
        assert (one.key, two.key) == ("gr\u00f6\u00dfe".encode(), None)
        assert one.headers == {"a": "b"}


@pytest.mark.parametrize("window", [1, 2, 7, 64])
def test_the_window_is_exact(open_queue: OpenQueue, window: int) -> None:
    q = open_queue(key_window=window)
    seqs = [q.put(b"", key=f"k{n}") for n in range(window)]
    assert [q.put(b"", key=f"k{n}") for n in range(window)] == seqs
    newest = q.put(b"", key="one more")
    assert q.put(b"", key="one more") == newest
    assert q.put(b"", key="k0") == newest + 1, "the oldest is forgotten"


def test_items_without_keys_take_no_place(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=1)
    first = q.put(b"", key="k")
    q.put_many([b"x"] * 50)
    assert q.put(b"", key="k") == first


def test_many_with_keys(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=100)
    a = q.put(b"a", key="a")
    got = q.put_many([b"A", b"b", b"c", b"B", b"d"], keys=["a", "b", None, b"b", "d"])
    assert got == [a, a + 1, a + 2, a + 1, a + 3]
    assert q.put_many([b"", b""], keys=["d", "a"]) == [a + 3, a]
    assert q.put_many([], keys=[]) == []
    assert q.put_many([b"e", b""], keys=["e", "a"], atomic=False) == [a + 4, a]
    assert drain(q) == [b"a", b"b", b"c", b"d", b"e"]
    with pytest.raises(ValueError, match="2 items and 1 keys"):
        q.put_many([b"", b""], keys=["a"])


def test_more_than_a_batch_holds(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=6000, durability="none")
    keys = [f"k{n}" for n in range(5000)]
    with pytest.raises(mpqueue.TooLarge):
        q.put_many([b""] * 5000, keys=keys)
    seqs = q.put_many([b""] * 5000, keys=keys, atomic=False)
    assert q.put_many([b""] * 5000, keys=keys, atomic=False) == seqs
    assert len(set(seqs)) == len(q) == 5000


def test_batches_with_keys(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=100)
    first = q.put(b"one", key="1")
    with q.batch() as batch:
        batch.append(b"again", key="1")
        batch.append(b"two", key="2")
        batch.append(b"three")
    assert batch.seqs == [first, first + 1, first + 2]
    with q.batch() as batch:
        batch.append(b"four")
    assert batch.seqs == range(first + 3, first + 4)


def test_a_bad_key_is_refused_where_it_is_appended(open_queue: OpenQueue, tmp_path: Path) -> None:
    """It was refused on commit, and took all good items with it, without a word."""
    q = open_queue(key_window=10)
    with q.batch() as batch:
        batch.append(b"one", key="1")
        for bad, error in (("", ValueError), (b"x" * 1025, ValueError), (7, TypeError)):
            with pytest.raises(error, match="key"):
                batch.append(b"bad", key=bad)
        batch.append(b"two", key=b"2")
    assert batch.seqs == [1, 2]
    with mpqueue.Queue(tmp_path / "keyless") as other:
        with other.batch() as batch:
            batch.append(b"one")
            with pytest.raises(mpqueue.OptionsMismatch, match="key_window"):
                batch.append(b"two", key="k")
        assert len(other) == 1


@pytest.mark.parametrize("error", [ValueError, TypeError, mpqueue.OptionsMismatch])
def test_what_a_commit_does_not_put_stays_in_the_batch(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    q = open_queue(key_window=10)
    batch = q.batch()
    batch.append(b"one", key="1")

    def refuse(*args: object, **named: object) -> None:
        raise error("no")

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(type(q), "_put_encoded", refuse)
        batch.commit()
    assert (len(batch), len(q)) == (1, 0)
    assert batch.commit() == [1]


def test_a_batch_whose_queue_was_closed_says_what_it_drops(open_queue: OpenQueue) -> None:
    q = open_queue()
    batch = q.batch()
    batch.append(b"one")
    q.close()
    with pytest.raises(mpqueue.Closed):
        batch.commit()
    with pytest.warns(ResourceWarning, match="1 appended"):
        del batch


def test_a_full_queue_knows_what_it_has(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=10, capacity=2)
    first = q.put(b"", key="1")
    q.put(b"")
    with pytest.raises(mpqueue.Full):
        q.put_nowait(b"", key="2")
    assert q.put_nowait(b"", key="1") == first
    drain(q)
    assert q.put_nowait(b"", key="2") == first + 2, "what was refused is not remembered"


def test_what_is_refused(open_queue: OpenQueue, tmp_path: Path) -> None:
    q = open_queue(key_window=10)
    for key, error in (("", ValueError), ("x" * 1025, ValueError), (b"", ValueError)):
        with pytest.raises(error, match="1 to 1024 bytes"):
            q.put(b"", key=key)
    with pytest.raises(TypeError, match="bytes or str"):
        q.put(b"", key=7)
    with pytest.raises(ValueError, match="65,528"):
        q.put(b"", key="k", headers={"a": "b" * 65515})
    assert q.put(b"", key="x" * 1024)
    assert len(q) == 1
    with pytest.raises(ValueError, match="fixed"):
        q.set_options(key_window=20)
    with pytest.raises(mpqueue.OptionsMismatch, match="key_window"):
        open_queue(key_window=20)
    assert q.options.key_window == 10


def test_a_queue_without_keys_refuses_them(open_queue: OpenQueue) -> None:
    q = open_queue()
    with pytest.raises(mpqueue.OptionsMismatch, match="remembers no keys"):
        q.put(b"", key="k")
    with pytest.raises(mpqueue.OptionsMismatch, match="remembers no keys"):
        q.put_many([b""], keys=["k"])
    assert len(q) == 0
    assert q.options.key_window is None


def test_asyncio(spool: Path) -> None:
    async def main() -> None:
        async with AsyncQueue(mpqueue.Queue(spool, key_window=10)) as queue:
            first = await queue.put(b"one", key="k")
            assert await queue.put(b"two", key="k") == first
            assert queue.put_nowait(b"three", key="k") == first

    asyncio.run(main())


def test_keys_outlive_their_frames(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumed, reclaimed, and after two operating-system crashes."""
    q = open_queue(key_window=50, segment_size=65536, keep_segments=0, durability="none")
    seqs = {f"k{n}": q.put(bytes(4000), key=f"k{n}") for n in range(60)}
    drain(q)
    assert q.stats().segments_removed > 0
    later = {f"l{n}": q.put(b"", key=f"l{n}") for n in range(5)}
    q.close()
    kept = {**{f"k{n}": seqs[f"k{n}"] for n in range(15, 60)}, **later}
    for boot in ("second", "third"):
        reboot(monkeypatch, boot)
        q = open_queue()
        assert {key: q.put(b"", key=key) for key in kept} == kept
        assert (q.stats().keys_remembered, q.stats().keys_damaged) == (50, 0)
        q.close()
    assert not verify(spool).damage
    q = open_queue()
    assert q.put(b"", key="k14") > max(later.values())


def test_the_same_boot_trusts_control(open_queue: OpenQueue) -> None:
    q = open_queue(key_window=50)
    first = q.put(b"", key="k")
    q.close()
    assert open_queue().put(b"", key="k") == first


def test_damage_to_the_file_costs_duplicates(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = open_queue(key_window=50, segment_size=65536, keep_segments=0, durability="none")
    seqs = [q.put(bytes(4000), key=f"k{n}") for n in range(50)]
    drain(q)
    q.close()
    file = spool / "keys"
    raw = bytearray(file.read_bytes())
    place = next(at for at in range(0, len(raw), 32) if any(raw[at : at + 32]))
    raw[place + 5] ^= 1
    file.write_bytes(raw)
    assert any(finding.file == "keys" for finding in verify(spool).findings)
    reboot(monkeypatch, "second")
    q = open_queue()
    stats = q.stats()
    assert (stats.keys_remembered, stats.keys_damaged) == (49, 1)
    again = [q.put(b"", key=f"k{n}") for n in range(1, 50)]
    assert again == seqs[1:]
    assert q.put(b"", key="k0") > max(seqs)
    q.close()
    file.unlink()
    assert any("missing" in finding.message for finding in verify(spool).findings)
    reboot(monkeypatch, "third")
    q = open_queue()
    assert q.stats().keys_damaged == 1
    assert file.stat().st_size == len(raw)
    assert q.put(b"", key="k49") > max(seqs), "its frame is gone, and the file with it"
    assert q.put(b"", key="k0") < q.stats().next_seq


def test_destroy_removes_the_file(spool: Path) -> None:
    mpqueue.Queue(spool, key_window=5).close()
    assert (spool / "keys").exists()
    mpqueue.destroy(spool)
    assert not os.path.lexists(spool)


def test_a_copy_remembers(spool: Path, tmp_path: Path, run_python: RunPython) -> None:
    import shutil

    with mpqueue.Queue(spool, key_window=5) as queue:
        first = queue.put(b"one", key="k")
        drain(queue)
    copy = tmp_path / "copy"
    shutil.copytree(spool, copy)
    script = """
        import sys, mpqueue
        with mpqueue.Queue(sys.argv[1]) as queue:
            print(queue.put(b"two", key="k"))
    """
    assert int(run_python(script, copy)) == first


def test_forked_children_agree(spool: Path) -> None:
    with mpqueue.Queue(spool, key_window=5) as queue:
        first = queue.put(b"one", key="k")
        child = os.fork()
        if child == 0:
            os._exit(0 if queue.put(b"two", key="k") == first else 1)
        assert os.waitpid(child, 0)[1] == 0
