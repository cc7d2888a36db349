"""The bytes of item n of a producer: anybody can compute them, so anybody can check them.

A payload is ``producer SPACE n SPACE filler``. It holds every byte value but the newline, so that
it also passes through ``mpqueue put --lines``.
"""

from __future__ import annotations

import random

# Percent of items, bytes at most; by what a producer is good at.
_SIZES = (
    ((60, 100), (90, 2_000), (98, 8_000), (100, 24_000)),  # a bit of everything
    ((100, 1),),  # long batches: many headers are written under the header lock
    ((50, 100), (100, 40_000)),  # long copies between claim and publication
)
KINDS = len(_SIZES)
OVERSIZED = 150_000  # does not fit a segment of the storm, gets one of its own
_NOISE = random.Random(0).randbytes(1 << 20).replace(b"\n", b"\0")


def _mix(producer: int, n: int) -> int:
    x = (producer * 0x9E3779B97F4A7C15 + n * 0xBF58476D1CE4E5B9 + 1) & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 31) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 29


def make(producer: int, n: int) -> bytes:
    """The payload; now and then larger than a whole segment.

    The filler is a slice of noise from a place of its own: made fast, so that a producer spends
    its time in `put`, where it is to be killed.
    """
    draw = _mix(producer, n)
    size = OVERSIZED
    if n % 997 != 996:
        sizes = _SIZES[producer % KINDS]
        most = next(most for percent, most in sizes if draw % 100 < percent)
        size = (draw >> 8) % most
    start = (draw >> 24) % (len(_NOISE) - OVERSIZED)
    return b"%d %d " % (producer, n) + _NOISE[start : start + size]


def identify(body: bytes) -> tuple[int, int] | None:
    """(producer, n) of a payload that is exactly what make() gives for them, else None."""
    head = body.split(b" ", 2)
    if len(head) != 3 or not head[0].isdigit() or not head[1].isdigit() or len(body) > 1 << 20:
        return None
    producer, n = int(head[0]), int(head[1])
    return (producer, n) if make(producer, n) == body else None
