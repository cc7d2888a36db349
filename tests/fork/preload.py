"""Opens the queue named in the environment when it is imported, before any worker exists."""

from __future__ import annotations

import os

import mpqueue

queue = mpqueue.Queue(os.environ["SPOOL"])
queue.put(b"0:0")  # the handle has been used, mapped and flushed before the workers are forked


def work(index: int, count: int) -> None:
    """One worker: its own items through the inherited handle."""
    for number in range(count):
        queue.put(b"%d:%d" % (index + 1, number))
