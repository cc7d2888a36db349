"""Producers are killed again and again, and put everything again: it is in the queue once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mpqueue

NAMES = ("a", "b", "c")
ITEMS, KILLS = 150, 8

CHILD = """
import sys

import mpqueue

path, name, items = sys.argv[1], sys.argv[2], int(sys.argv[3])
with mpqueue.Queue(path) as queue:
    for n in range(0, items, 5):
        if n % 2:
            seqs = [queue.put(b"x" * (n * 997 % 30000), key=f"{name}:{n + i}") for i in range(5)]
        else:
            keys = [f"{name}:{n + i}" for i in range(5)]
            seqs = queue.put_many([b"y" * (n * 131 % 5000)] * 5, keys=keys)
        print(*seqs, flush=True)
"""


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["none", "group"])
def test_every_key_once(spool: Path, durability: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    seen: Counter[bytes | None] = Counter()
    told: dict[tuple[str, int], list[int]] = {}

    def start(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, str(spool), name, str(ITEMS)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(consumer: mpqueue.Consumer) -> None:
        while (item := consumer.reserve(0)) is not None:
            seen[item.key] += 1
            item.ack()

    with mpqueue.Queue(
        spool,
        key_window=len(NAMES) * ITEMS + 100,
        segment_size=1 << 17,
        keep_segments=1,
        max_segments=64,
        durability=durability,
    ) as queue:
        with queue.consumer() as consumer:
            children = {name: start(name) for name in NAMES}
            left = dict.fromkeys(NAMES, KILLS)
            line = dict.fromkeys(NAMES, 0)
            while children:
                name = dice.choice(list(children))
                child = children[name]
                assert child.stdout is not None
                text = child.stdout.readline()
                seqs = [int(word) for word in text.split()]
                if text:
                    assert told.setdefault((name, line[name]), seqs) == seqs
                    line[name] += 1
                if dice.random() < 0.3:
                    take(consumer)
                if text and (left[name] == 0 or dice.random() < 0.9):
                    continue
                child.kill()
                child.stdout.close()
                if child.wait() == 0:
                    del children[name]
                else:
                    assert child.returncode == -signal.SIGKILL
                    left[name] -= 1
                    line[name] = 0
                    children[name] = start(name)
            take(consumer)
            consumer.checkpoint()
        assert sum(left.values()) < KILLS * len(NAMES)
        stats = queue.stats()
        assert stats.depth == 0
        assert stats.items_duplicate > 0
    wanted = {f"{name}:{n}".encode() for name in NAMES for n in range(ITEMS)}
    assert seen.keys() == wanted
    assert set(seen.values()) == {1}
