"""Goal: what is scraped is what `Queue.stats()` says, and a scrape leaves no trace.

Method: queues with every kind of history, also dead members and reboots; the text is read by
prometheus_client's parsers (and by promtool where there is one), never by our own; the directory is
hashed before and after.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

import mpqueue
from conftest import OpenQueue
from mpqueue import layout, metrics, reader
from mpqueue.reader import control as reader_control
from mpqueue.reader.stats import read_members, read_stats

ROOT = Path(__file__).resolve().parent.parent.parent

Key = tuple[str, tuple[tuple[str, str], ...]]


def scraped(text: str, openmetrics: bool = False) -> dict[Key, float]:
    """Value by sample name and labels, as a real parser understands them; no sample twice."""
    found: dict[Key, float] = {}
    for family in (parse_openmetrics if openmetrics else parse_text)(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def expected(stats: mpqueue.Stats, label: str) -> dict[Key, float]:
    """What Stats says, by names made from its own docstrings' words."""
    kinds = documented_kinds()
    queue = ("queue", label)
    result: dict[Key, float] = {}
    for field, value in stats._asdict().items():
        if isinstance(value, mpqueue.Histogram):
            name, total = f"mpqueue_{field}", 0
            for bound, count in zip(value.bounds, value.counts, strict=True):
                total += count
                text = "+Inf" if bound == float("inf") else repr(bound)
                result[f"{name}_bucket", (("le", text), queue)] = total
            result[f"{name}_count", (queue,)] = value.count
            result[f"{name}_sum", (queue,)] = value.sum
        elif isinstance(value, str):
            result["mpqueue_queue_info", ((field, value), queue)] = 1
        else:
            suffix = "_total" if kinds[field] == "counter" else ""
            reason = (("reason", "full"),) if field == "items_dropped" else ()
            assert isinstance(value, int | float)
            result[f"mpqueue_{field}{suffix}", (queue, *reason)] = float(value)
    result["mpqueue_up", (queue,)] = result["mpqueue_live", (queue,)] = 1
    result["mpqueue_build_info", (("version", mpqueue.__version__),)] = 1
    return result


def documented_kinds() -> dict[str, str]:
    """Fields of Stats by the word that their docstring begins with."""
    tree = ast.parse((ROOT / "mpqueue/stats.py").read_text())
    (body,) = (node.body for node in tree.body if getattr(node, "name", "") == "Stats")
    kinds = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            word = str(ast.literal_eval(text.value)).partition(":")[0].lower()
            kinds[field.target.id] = word if word in ("counter", "gauge") else ""
    return kinds


def fingerprint(path: Path) -> str:
    """One hash over everything in the directory and over the times of its last changes."""
    digest = hashlib.sha256()
    for entry in sorted([path, *path.rglob("*")]):
        found = entry.lstat()
        digest.update(repr((entry.name, found.st_mode, found.st_ino, found.st_mtime_ns)).encode())
        if entry.is_file():
            digest.update(entry.read_bytes())
    return digest.hexdigest()


def close_to(found: dict[Key, float], wanted: dict[Key, float]) -> None:
    """Equal in every sample, but for the age, which grows while one looks."""
    ages = {key for key in wanted if key[0] == "mpqueue_oldest_ready_age_seconds"}
    assert found.keys() == wanted.keys()
    assert {k: v for k, v in found.items() if k not in ages} == {
        k: v for k, v in wanted.items() if k not in ages
    }
    for key in ages:
        assert (found[key] == 0) == (wanted[key] == 0)
        assert found[key] <= wanted[key]  # it was looked at first


def compare(q: mpqueue.Queue, path: Path, openmetrics: bool = False) -> None:
    """A scrape agrees with Stats. The consumer's helper may write meanwhile: then once more."""
    while True:
        before = q.stats()
        found = scraped(metrics.render([path], openmetrics=openmetrics), openmetrics)
        after = q.stats()
        age = after.oldest_ready_age_seconds
        if {**before._asdict(), "oldest_ready_age_seconds": age} == after._asdict():
            return close_to(found, expected(after, str(path)))


@pytest.fixture
def busy(open_queue: OpenQueue) -> Iterator[mpqueue.Queue]:
    """A queue with a value in nearly every field that a test can bring about."""
    q = open_queue(segment_size=1 << 16, capacity=300, max_members=16, ack_linger=1000.0)
    for number in range(20):
        q.put(b"x" * number)
    with q.consumer() as c:
        c.reserve().nack()
        c.ack_many(c.reserve_many(5))
        c.skip()
    q.put_many([b"x" * 2000] * 200, atomic=False)  # over several segments
    for _ in range(3):
        q.put_many([b""] * 200, block=False) if False else None
    while q.put(b"", block=False, on_full="drop") is not None:
        pass
    with pytest.raises(mpqueue.Full):
        q.put(b"", block=False)
    for _ in range(20):  # more than the table holds: some are folded into what is retired
        pid = os.fork()
        if pid == 0:
            q.put(b"", block=False, on_full="drop")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    consumer = q.consumer()
    items = consumer.reserve_many(100)
    consumer.ack_many(items[10:50])
    yield q
    consumer.close()
    del items


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_value_is_that_of_stats(busy: mpqueue.Queue, spool: Path, openmetrics: bool) -> None:
    stats = busy.stats()
    for field in (
        *("items_nacked", "items_skipped", "items_dropped", "full", "reserved_items", "segments"),
        *("items_redelivered", "segments_made", "consumer_pid", "oldest_ready_age_seconds"),
    ):
        assert getattr(stats, field), f"{field} was to be looked at"
    assert stats.members == 16
    compare(busy, spool, openmetrics)


def test_every_value_under_every_history(open_queue: OpenQueue, spool: Path) -> None:
    """After each step again: empty, sealed, reopened, another policy, kept and removed segments."""

    def check() -> None:
        compare(q, spool)

    q = open_queue(segment_size=1 << 16, keep_segments=1, ack_linger=1000.0)
    check()
    q.put(b"one")
    check()
    q.put_many([b"x" * 1000] * 400, atomic=False)
    check()
    with q.consumer() as c:
        for _ in range(5):
            c.ack_many(c.reserve_many(75))
            c.checkpoint()
            check()
    assert q.stats().kept_segments == 1
    assert q.stats().segments_removed
    q.set_options(durability="none", max_bytes=1 << 20)
    q.put(b"not synced")
    assert q.stats().unsynced_items == 1
    check()
    q.close()
    q = open_queue()
    q.seal()
    check()
    with q.consumer() as c:
        c.ack_many(c.reserve_many(1000))
        check()
    assert len(q) == 0
    check()


def test_age_where_the_oldest_item_is_the_first_of_the_next_segment(
    open_queue: OpenQueue, spool: Path
) -> None:
    q = open_queue(segment_size=1 << 16, ack_linger=1000.0, durability="none")
    for _ in range(8):
        q.put(b"x" * 12000)  # 4 a segment
    with q.consumer() as c:
        for _ in range(8):
            assert metrics.read(spool).values["oldest_ready_age_seconds"]
            compare(q, spool)
            c.take()
        assert metrics.read(spool).values["oldest_ready_age_seconds"] == 0


# Counters that a test cannot bring about one by one.
POKED = [
    *("delivered_items", "redelivered_items", "nacked_items", "loss_events", "torn_items"),
    *("segments_made", "segments_reused", "segments_removed", "unreclaimed", "takeovers"),
    *("cursor_writes", "corrupt_saved", "corrupt_skipped", "recoveries", "recovered_at_most"),
]
POKED_MEMBER = ["full", "waits", "lock_waits", "lock_wait_max_ns", "flush_ns", "dropped_items"]


def poke(spool: Path, **words: int) -> None:
    """Writes words into the control file of a queue that nobody has open."""
    with (spool / "control").open("r+b") as file:
        for name, value in words.items():
            owner, _, field = name.rpartition("__")
            offset = layout.CONTROL.offset(owner) if owner else 0
            table = layout.MEMBER if owner else layout.CONTROL
            file.seek(offset + table.offset(field))
            file.write(value.to_bytes(8, "little"))


def test_every_counter_comes_from_its_own_word(open_queue: OpenQueue, spool: Path) -> None:
    open_queue().close()
    members = [f"{owner}__{name}" for owner in ("retired", "shared") for name in POKED_MEMBER]
    words = {name: 1000 + 7 * number for number, name in enumerate([*POKED, *members])}
    poke(spool, **words)
    q = open_queue()
    stats = q.stats()
    assert stats.lock_takeovers == words["takeovers"]
    assert stats.waits == words["retired__waits"] + words["shared__waits"]
    assert stats.lock_wait_max_seconds == words["shared__lock_wait_max_ns"] / 1e9
    compare(q, spool)


def test_the_histogram_adds_up_while_a_flush_is_being_counted(
    open_queue: OpenQueue, spool: Path
) -> None:
    """Between the two words that a flush adds to they differ; not in what is shown."""
    open_queue().close()
    poke(spool, retired__flushes=5, retired__flush_histogram=3)  # the first bucket
    found = scraped(metrics.render([spool]))
    name, label = "mpqueue_sync_duration_seconds", (("queue", str(spool)),)
    assert found[f"{name}_count", label] == found[f"{name}_bucket", (("le", "+Inf"), *label)]


def test_members_are_those_of_the_queue(busy: mpqueue.Queue, spool: Path) -> None:
    with reader.inspect(spool) as view:
        assert read_members(view) == busy.members()
    assert {member.alive for member in busy.members()} == {False, True}


def test_counters_never_fall_over_reopening(open_queue: OpenQueue, spool: Path) -> None:
    before: dict[Key, float] = {}
    for number in range(5):
        q = open_queue(segment_size=1 << 16)
        q.put_many([b"x" * 3000] * (10 + number), atomic=False)
        with q.consumer() as c:
            c.ack_many(c.reserve_many(8))
            c.reserve().nack()
        q.close()
        now = scraped(metrics.render([spool]))
        for (name, labels), value in before.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert value <= now[name, labels], name
        assert now["mpqueue_items_acked_total", (("queue", str(spool)),)] == 8 * (number + 1)
        before = now


def test_a_scrape_leaves_no_trace(busy: mpqueue.Queue, spool: Path) -> None:
    """Not a byte, name, mode or time; not a member; not the consumer role; not a semaphore."""
    busy.close()
    mpqueue.semaphore.unlink(busy.gate_name)
    before = fingerprint(spool)
    for openmetrics in (False, True):
        metrics.render([spool], openmetrics=openmetrics)
    (found,) = {metrics.read(spool).values["members_alive"] for _ in range(3)}
    assert found == 0
    assert fingerprint(spool) == before
    assert mpqueue.semaphore.inspect(busy.gate_name) is None
    mpqueue.destroy(spool)  # nobody has it open


def test_a_live_queue_has_no_scraper_among_its_members(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    members = q.members()
    assert metrics.read(spool).values["members_alive"] == 1
    assert q.members() == members
    with q.consumer():
        assert metrics.read(spool).values["consumer_pid"] == os.getpid()


def test_a_scrape_makes_no_queue(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no directory")
    for name in ("missing", "empty", "file"):
        text = metrics.render([tmp_path / name])
        assert scraped(text)["mpqueue_up", (("queue", str(tmp_path / name)),)] == 0
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
    assert os.listdir(tmp_path / "empty") == []


def test_one_bad_queue_does_not_hide_the_others(
    open_queue: OpenQueue, spool: Path, tmp_path: Path
) -> None:
    q = open_queue()
    q.put(b"x")
    other = tmp_path / "other"
    shutil.copytree(spool, other)
    meta = bytearray((other / "meta").read_bytes())
    meta[100] ^= 1
    meta[4096 + 100] ^= 1
    (other / "meta").write_bytes(meta)
    told: list[tuple[str, Exception]] = []
    paths = [tmp_path / "missing", spool, other]
    text = metrics.render(paths, report=lambda queue, error: told.append((queue, error)))
    found = scraped(text)
    assert [found["mpqueue_up", (("queue", str(path)),)] for path in paths] == [0, 1, 0]
    assert found["mpqueue_depth", (("queue", str(spool)),)] == 1
    assert {queue for name, ((_, queue), *_) in found if name == "mpqueue_depth"} == {str(spool)}
    assert [(queue, type(error).__name__) for queue, error in told] == [
        (str(tmp_path / "missing"), "NotAQueue"),
        (str(other), "FormatError"),
    ]


def test_several_queues_are_in_one_exposition_and_none_twice(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for number, path in enumerate(paths):
        with mpqueue.Queue(path, segment_size=1 << 16, durability="none") as q:
            q.put_many([b"x"] * number)
    found = scraped(metrics.render([*paths, paths[0]]))  # families are together, or parsing fails
    depths = [found["mpqueue_depth", (("queue", str(path)),)] for path in paths]
    assert depths == [0, 1, 2]
    for path in paths:
        mpqueue.destroy(path)


NASTY = [
    b'quote"quote',
    b"back\\slash\\",
    b"new\nline",
    b"brace}{,=",
    "h\u00e9".encode(),
    b"\xff\xfe raw",
    b"# EOF",
]


@pytest.mark.parametrize("name", NASTY)
def test_paths_are_escaped(tmp_path: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    with mpqueue.Queue(path, segment_size=1 << 16, durability="none") as q:
        q.put(b"x")
    for openmetrics in (False, True):
        text = metrics.render([path], openmetrics=openmetrics)
        text.encode("utf-8", "strict")
        found = scraped(text, openmetrics)
        labels = {dict(labels).get("queue") for _, labels in found} - {None}
        assert labels == {path.decode("utf-8", "backslashreplace")}
    mpqueue.destroy(path)


def test_after_a_reboot_what_the_cursor_kept_is_shown(
    open_queue: OpenQueue, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has opened it since: the scraper must not be the one, and shows no stale gauge."""
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-0")
    monkeypatch.setattr(reader_control, "boot_id", lambda: os.environ["MPQ_BOOT_ID"])
    q = open_queue()
    q.put_many([b"x"] * 10)
    with q.consumer() as c:
        c.ack_many(c.reserve_many(4))
    q.close()
    monkeypatch.setenv("MPQ_BOOT_ID", "boot-1")
    before = fingerprint(spool)
    found = scraped(metrics.render([spool]))
    assert fingerprint(spool) == before
    label = (("queue", str(spool)),)
    assert (found["mpqueue_up", label], found["mpqueue_live", label]) == (1, 0)
    assert found["mpqueue_items_acked_total", label] == 4
    assert found["mpqueue_items_delivered_total", label] == 4
    assert ("mpqueue_depth", label) not in found
    q = open_queue()
    compare(q, spool)
    now = scraped(metrics.render([spool]))
    assert all(value <= now[key] for key, value in found.items() if key[0].endswith("_total"))


def test_files_that_may_only_be_read_are_enough(open_queue: OpenQueue, spool: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    q = open_queue(segment_size=1 << 16)
    q.put_many([b"x"] * 3)
    code = (
        "import os, sys; from mpqueue import metrics, reader; metrics.render([sys.argv[1]]);"
        "os.setgid(65534); os.setuid(65534); print(metrics.render([sys.argv[1]]), end='')"
    )
    command = [sys.executable, "-P", "-c", code, str(spool)]
    for parent in (spool, *spool.parents[:4]):
        if parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    hidden = scraped(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
    assert hidden["mpqueue_up", (("queue", str(spool)),)] == 0
    for file in spool.iterdir():
        file.chmod(0o644)
    shown = scraped(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
    close_to(shown, expected(q.stats(), str(spool)))


@pytest.mark.crash
def test_a_reading_under_load_is_whole(open_queue: OpenQueue, spool: Path) -> None:
    """Producers and a consumer that run and are killed: the histogram adds up, nothing is < 0."""
    q = open_queue(segment_size=1 << 16, capacity=1000)
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                consumer = q.consumer(wait=60) if number == 0 else None
                while True:
                    q.put(b"x" * 500) if consumer is None else consumer.take()
            finally:
                os._exit(1)
        children.append(pid)
    try:
        label = (("queue", str(spool)),)
        last: dict[Key, float] = {}
        turn = 0
        while turn < 60 or last["mpqueue_items_acked_total", label] < 100:
            turn += 1
            if turn == 30:
                os.kill(children[1], signal.SIGKILL)
            found = scraped(metrics.render([spool]))
            infinite = (("le", "+Inf"), *label)
            name = "mpqueue_sync_duration_seconds"
            assert found[f"{name}_count", label] == found[f"{name}_bucket", infinite]
            assert min(found.values()) >= 0
            buckets = [value for (key, _), value in found.items() if key == f"{name}_bucket"]
            assert buckets == sorted(buckets)
            for key in last:
                if key[0].startswith("mpqueue_items_") and key[0].endswith("_total"):
                    assert last[key] <= found[key], key
            last = found
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    compare(q, spool)


# ---- the table, the collector, promtool


def test_the_table_is_complete_and_of_the_kinds_that_the_docstrings_say() -> None:
    kinds = documented_kinds()
    assert kinds.keys() == mpqueue.Stats.__annotations__.keys()
    fields = [family.field for family in metrics.FAMILIES]
    assert fields[:4] == ["up", "live", "build", "queue"]
    assert fields[4:] == [name for name in kinds if name != "durability"]
    for family in metrics.FAMILIES[4:]:
        if family.kind == "histogram":
            assert family.field == "sync_duration_seconds"
        else:
            assert family.kind == (kinds[family.field] or "gauge"), family.field
    assert len({family.help for family in metrics.FAMILIES}) == len(metrics.FAMILIES)


def test_the_collector_gives_the_same_and_registering_reads_nothing(
    busy: mpqueue.Queue, spool: Path, tmp_path: Path
) -> None:
    registry = prometheus_client.CollectorRegistry()
    told: list[str] = []
    missing = tmp_path / "missing"
    collector = metrics.Collector(spool, missing, report=lambda queue, _: told.append(queue))
    registry.register(collector)
    assert told == []
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(metrics.Collector(spool))
    text = prometheus_client.generate_latest(registry).decode()
    assert told == [str(missing)]
    wanted = expected(busy.stats(), str(spool))
    wanted["mpqueue_up", (("queue", str(missing)),)] = 0
    close_to(scraped(text), wanted)
    assert scraped(metrics.render([spool, missing])).keys() == wanted.keys()


def test_the_collector_needs_a_path_and_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="at least one queue"):
        metrics.Collector()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=re.escape("mpqueue[prometheus]")):
        metrics.Collector("spool")


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here; it comes with Prometheus")
    return found


def test_promtool_has_nothing_to_say(busy: mpqueue.Queue, spool: Path, promtool: str) -> None:
    text = metrics.render([spool, spool / "missing"])
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stats_of_a_queue_that_is_not_live_are_none(open_queue: OpenQueue, spool: Path) -> None:
    open_queue().close()
    (spool / "control").unlink()
    with reader.inspect(spool) as view:
        assert read_stats(view) is None
        assert read_members(view) == []
