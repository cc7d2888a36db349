"""What the walk hands on: frames, their kinds, and what it looks at to tell them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.acks import Acks
from mpqueue.reader.control import Control, Liveness
from mpqueue.reader.evidence import Evidence
from mpqueue.reader.files import Cursor, Meta

ITEM = "item"
GAP = "gap"
CLAIMED = "claimed"
DAMAGED = "damaged"
LOST = "lost"
TORN = "torn"
PAD = "pad"


class Frame(NamedTuple):
    """One frame met by the walk, or (kinds "lost", "torn") a hole of `span` seqs from `seq` on.

    "claimed" is being written by a living producer. "damaged" has a whole header and a body that
    fails its hash. "torn" is either of the two above what was promised when the power went; the
    next open drops it. Bytes: `extent` from `offset`.
    """

    kind: str
    seq: int
    span: int
    generation: int
    offset: int
    extent: int
    length: int
    ext_length: int
    flags: int
    enqueued_at: int
    state: int
    epoch: int

    @property
    def position(self) -> int:
        """Ordered place in the queue."""
        return layout.position(self.generation, self.offset)


class Source(NamedTuple):
    """Everything that a walk looks at. `control` is None where it must not be believed."""

    directory: Path
    meta: Meta
    cursor: Cursor | None
    control: Control | None
    liveness: Liveness
    acks: Acks
    evidence: Evidence
    rolled: int = 0  # the greatest watermark of any roll record, once a walk has looked

    def durable_position(self) -> int:
        """The durable watermark, as far as it was persisted or is shared now."""
        if self.control is not None:
            return int(self.control.values["durable_position"])
        return max(self.cursor.durable_position if self.cursor is not None else 0, self.rolled)

    def torn(self, position: int) -> bool:
        """Whether what cannot be read there was never promised: a power cut may have taken it."""
        if self.control is not None:
            return False
        return position >= max(self.durable_position(), self.evidence.position)
