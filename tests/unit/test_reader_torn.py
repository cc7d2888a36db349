"""The second reader against the core after a power cut: what is torn, what is lost, what is left.

Method: hypothesis thinks of a life of a small queue (puts, batches, acks, the cursor written at
some moments and not at others, cuts before) under each durability. Its directory is copied while it
is open, without a control of this boot, which is what a power cut leaves if it takes nothing; then
blows strike the copy: sectors and pages that never came to the disk, and damage. The reader looks,
the core opens it, the reader looks again, the core drains it. All must name the same items, and
nothing may stay behind. Hypothesis prints the life of a failure and how to replay it.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import mpqueue
from mpqueue import layout, semaphore
from mpqueue.reader import inspect, verify
from mpqueue.reader.files import xxh64

sys.path.insert(0, str(Path(__file__).parent))
from test_reader_damage import Harm, strike

SMALL = {"segment_size": 64 * 1024, "ack_window": 64, "max_members": 2}


class Act(NamedTuple):
    """One step in the life of a queue; `size` counts items or bytes."""

    kind: str
    size: int


ACTS = st.builds(
    Act,
    kind=st.sampled_from(
        ("put", "put", "put", "batch", "batch", "take", "ack", "ack last", "write", "flush", "cut")
    ),
    size=st.integers(0, 20),
)
HARMS = st.builds(
    Harm,
    kind=st.sampled_from(
        ("sector", "sector", "page", "page", "end", "flip", "zero", "copy", "truncate", "remove")
    ),
    segment=st.integers(0, 5),
    place=st.integers(0, 65_535),
    other=st.integers(0, 65_535),
    length=st.integers(1, 6_000),
)
CONTROLS = ("gone", "older", "copied")


def cut(path: Path, to: Path, control: str) -> None:
    """What a power cut leaves of the queue if everything came to the disk."""
    shutil.copytree(path, to)
    file = to / "control"
    if control == "gone":
        file.unlink()
    elif control == "older":
        data = bytearray(file.read_bytes())
        at, end = layout.CONTROL.offset("boot_id"), layout.CONTROL.offset("identity_hash")
        data[at : at + 8] = b"00000000"
        struct.pack_into("<Q", data, end, xxh64(bytes(data[:end]), 0))
        file.write_bytes(data)


def live(directory: Path, acts: list[Act], durability: str, control: str) -> Path:
    """Lives through the acts; returns the copy that the last cut left."""
    pending = list(acts)
    number = 0
    path = directory / "0"
    while True:
        with (
            mpqueue.Queue(path, durability=durability, **SMALL) as queue,
            queue.consumer() as consumer,
        ):
            held: list[mpqueue.Item] = []
            while pending:
                act = pending.pop(0)
                if act.kind == "put":
                    queue.put(bytes([act.size]) * (act.size * 1_600))
                elif act.kind == "batch":
                    queue.put_many([b"b" * 200 * act.size] * (1 + act.size % 7))
                elif act.kind == "take":
                    held += consumer.reserve_many(1 + act.size, timeout=0)
                elif act.kind.startswith("ack"):
                    for _ in range(min(len(held), 1 + act.size // 4)):
                        held.pop(-1 if act.kind == "ack last" else 0).ack()
                elif act.kind == "write":
                    consumer.checkpoint()
                elif act.kind == "flush":
                    queue.checkpoint()
                else:
                    break
            number += 1
            after = directory / str(number)
            cut(path, after, control)
            for item in held:
                item.nack()
        shutil.rmtree(path)
        path = after
        if not pending:
            return path


def hit(path: Path, harm: Harm, headers: bool) -> None:
    """Sectors, pages and ends that a power cut takes, or damage of any kind.

    Without `headers` those stay: they are durable before a segment has its name.
    """
    segments = sorted(file for file in path.iterdir() if file.name.startswith("segment-"))
    if not segments:
        return
    unit = {"sector": 512, "page": 4096, "end": 512}.get(harm.kind)
    if unit is None:
        heads = {file: file.read_bytes()[: layout.SEGMENT_FIRST] for file in segments}
        strike(path, harm)
        for file, head in heads.items() if not headers else ():
            body = file.read_bytes()[layout.SEGMENT_FIRST :] if file.exists() else b""
            file.write_bytes(head + body)
        return
    victim = segments[harm.segment % len(segments)]
    data = bytearray(victim.read_bytes())
    first = harm.place * len(data) // 65_536 // unit * unit
    first = first if headers else max(first, layout.SEGMENT_FIRST)
    last = len(data) if harm.kind == "end" else min(len(data), first + unit * (1 + harm.other % 3))
    data[first:last] = bytes(max(0, last - first))
    victim.write_bytes(data)


def check(
    directory: Path,
    acts: list[Act],
    harms: list[Harm],
    durability: str,
    how: str,
    cursor: bool = True,
) -> None:
    path = live(directory, acts, durability, how)
    if not cursor:
        (path / "cursor").unlink()
    # What an epoch skipped stands in the roll record of its first segment alone.
    headers = not any(act.kind == "cut" for act in acts)
    for harm in harms:
        hit(path, harm, headers)
    before = verify(path)
    with inspect(path) as view:
        expected = [(record.seq, record.body) for record in view.items()]
        known = view.counters if cursor else {"lost_items": 0, "torn_items": 0}
        lost_before, torn_before = (known[f"{kind}_items"] for kind in ("lost", "torn"))
    with mpqueue.Queue(path, create=False) as queue:
        stats = queue.stats()
        lost_at_open = stats.lost_items - lost_before
        opened = verify(path).counts
        assert opened.torn == 0
        assert opened.depth == stats.depth
        assert stats.torn_items - torn_before == before.counts.torn
        assert opened.damaged + opened.lost + lost_at_open == (
            before.counts.damaged + before.counts.lost
        )
        found = []
        with queue.consumer(on_loss=lambda _: None) as consumer:
            while (item := consumer.reserve(0)) is not None:
                found.append((item.seq, bytes(item.body)))
                item.ack()
        assert found == expected
        assert before.counts.ready == len(expected)
        stats = queue.stats()
        assert stats.depth == 0
        assert stats.lost_items - lost_before == before.counts.damaged + before.counts.lost
        assert stats.torn_items - torn_before == before.counts.torn
        after = verify(path)
        assert (after.counts.depth, after.counts.torn) == (0, 0)
        # A file that was cut short stays one; of items there is nothing more to say.
        assert not [f for f in after.findings if f.severity == "error" and f.seq >= 0]


@settings(
    max_examples=100,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    acts=st.lists(ACTS, min_size=1, max_size=30),
    harms=st.lists(HARMS, max_size=4),
    durability=st.sampled_from(("none", "none", "interval", "group")),
    control=st.sampled_from(CONTROLS),
    cursor=st.sampled_from((True, True, False)),
)
@example(  # no cursor, and the end of a segment whose only whole header is a large item's
    acts=[Act("put", 20), Act("put", 20), Act("put", 1), Act("batch", 1)],
    harms=[Harm("zero", 0, 65_535 * 3 // 4, 0, 6_000)],
    durability="none",
    control="older",
    cursor=False,
)
@example(  # neither cursor nor control, and a file without anything in it
    acts=[Act("put", 0)],
    harms=[Harm("sector", 0, 0, 0, 1), Harm("end", 0, 0, 0, 1)],
    durability="none",
    control="gone",
    cursor=False,
)
@example(  # the first item of an epoch is gone: the seqs that the epoch skipped are nobody's
    acts=[Act("put", 1), Act("cut", 0), Act("put", 1), Act("put", 1)],
    harms=[Harm("sector", 1, 4096, 0, 1)],
    durability="none",
    control="gone",
    cursor=True,
)
def test_reader_and_core_agree_after_a_power_cut(
    acts: list[Act], harms: list[Harm], durability: str, control: str, cursor: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            check(directory, acts, harms, durability, control, cursor)
        finally:
            for path in directory.iterdir():
                with inspect(path) as view:
                    semaphore.unlink(f"/mpq-{view.meta.uuid}")
