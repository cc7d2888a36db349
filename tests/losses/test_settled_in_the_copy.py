"""Goal: a body is what was put, whatever other threads settle while it is on its way out.

Method: making an Item of a queue with a codec may run the garbage collector, and with it a hook
that stands for another thread: it acks the item in the making, reclaims its segment, and has a
second handle reuse the file.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue

SIZE = 20_000
COUNT = 5

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="newer collectors do not run where an object is made"
)


@pytest.fixture
def once() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has the collector call a function at each object that it could run for, until it is True."""
    thresholds = gc.get_threshold()
    hooks: list[Callable[[], object]] = []

    def run(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and hooks:
            hook = hooks.pop()
            if hook():
                gc.set_threshold(*thresholds)
            else:
                hooks.append(hook)

    def arm(hook: Callable[[], object]) -> None:
        gc.collect()
        hooks.append(hook)
        gc.set_threshold(1)

    gc.callbacks.append(run)
    yield arm
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(run)
    assert not hooks


Items = list[mpqueue.Item[str] | None]
TAKES: dict[str, Callable[[mpqueue.Consumer[str]], Items]] = {
    "reserve": lambda c: [c.reserve(0)],
    "reserve_many": lambda c: [*c.reserve_many(3, timeout=0)],
    "take": lambda c: [c.take(0)],
    "peek": lambda c: [c.peek()],
}


def new_body(n: int) -> str:
    return f"new{n}" * (SIZE // 4)


@pytest.mark.parametrize("how", TAKES)
@pytest.mark.parametrize("views", [False, True])
def test_a_reused_file_never_shows(
    tmp_path: Path, once: Callable[[Callable[[], object]], None], how: str, views: bool
) -> None:
    path = tmp_path / "spool"
    with (
        mpqueue.Queue(
            path,
            segment_size=1 << 16,
            max_segments=8,
            keep_segments=4,
            durability="none",
            codec="json",
        ) as q,
        mpqueue.Queue(path, codec="json") as other,
        q.consumer(views=views) as c,
    ):
        bodies = [str(n) * SIZE for n in range(COUNT)]
        for body in bodies:
            q.put(body)
        reused = q.stats().segments_reused

        def settle() -> bool:
            if how != "peek" and not q.stats().reserved_items:
                return False  # an object made before
            for _ in range(COUNT):
                item = c.reserve(0)
                if item is not None:
                    item.ack()
            c.ack_up_to(q.stats().next_seq)
            for _ in range(3):
                c.checkpoint()
            for n in range(2 * COUNT):
                other.put(new_body(n))
            return True

        once(settle)
        items = TAKES[how](c)
        assert q.stats().segments_reused > reused, "the file was not reused"
        for item in items:
            if item is not None:
                n = item.seq - 1
                assert item.value == (bodies[n] if n < COUNT else new_body(n - COUNT)), item
