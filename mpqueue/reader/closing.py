"""What is missing between segments after a reboot, by the rules of the rebuild that will follow.

A segment that holds an item was entered, so its roll record tells where the walk before it ended.
What that says is missing lay in the files before, and is torn where they are there and it began at
or above the watermark. Files that are missing took promised items along: a power cut takes no name
away. Where the floor waits for this very segment to be made there was none before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.frame import LOST, TORN, Frame, Source
from mpqueue.reader.segment import Roll


class Opened(NamedTuple):
    """A segment that was looked at and may yet turn out to have held more.

    Its frames end at offset `tail`, where whole padding follows if `padded`.
    """

    generation: int
    roll: Roll | None
    tail: int
    size: int
    whole: bool
    padded: bool


def close_up_to(
    source: Source,
    opened: Sequence[Opened],
    into: Opened,
    first_seq: int,
    expected: int,
    end: int,
    met: bool,
) -> tuple[list[Frame], int]:
    """The holes before segment `into`, whose first item is `first_seq`, and the next seq behind.

    `expected` is the seq behind the last frame, which ended at position `end`; `met` says whether
    there was one at all.
    """
    frames: list[Frame] = []
    for before, after in pairwise([*opened, into]):
        if before.roll is not None and expected >= before.roll.previous_seq:
            expected = max(expected, min(before.roll.base_seq, first_seq))  # an epoch skipped them
        if after.generation != before.generation + 1:
            continue
        until = expected
        if after.roll is not None:
            until = min(after.roll.previous_seq, first_seq)
        elif after is into:
            until = first_seq
        if until <= expected:
            continue
        full = before.tail + layout.FRAME_HEADER > before.size
        if not (before.whole if full else before.padded):
            torn = source.torn(layout.position(before.generation, before.tail))
            extent = max(0, before.size - before.tail)
            at = (before.generation, before.tail, extent)
            frames.append(_hole(TORN if torn else LOST, expected, until, at))
        expected = until
    ended = first_seq if into.roll is None else min(into.roll.previous_seq, first_seq)
    floor_position = source.acks.floor_position
    if into.generation != layout.position_parts(floor_position)[0] and ended > expected:
        made = not met and floor_position == layout.position(into.generation - 1, 0)
        start = layout.position(into.generation, layout.SEGMENT_FIRST)
        if made:
            at = (into.generation, layout.SEGMENT_FIRST, 0)
        else:
            at = (*layout.position_parts(end), 0)
        frames.append(_hole(TORN if made and source.torn(start) else LOST, expected, ended, at))
        expected = ended
    return frames, expected


def _hole(kind: str, first: int, until: int, at: tuple[int, int, int]) -> Frame:
    generation, offset, extent = at
    return Frame(kind, first, until - first, generation, offset, extent, 0, 0, 0, 0, 0, 0)
