"""What is settled: floor, acked window and attempts, from control or from the cursor.

Control's word counts while it speaks of this boot; otherwise the newest valid cursor slot does.
Every doubt is decided as "not acked", because that can only deliver an item again.
"""

from __future__ import annotations

import struct

from mpqueue import layout
from mpqueue.reader.control import Control
from mpqueue.reader.files import Cursor

_TAG = (1 << 32) - 1


class Acks:
    """The settled seqs: all below `floor`, and those whose bit is set in the window above it."""

    def __init__(self, control: Control | None, cursor: Cursor | None) -> None:
        """`control` is None where it must not be believed."""
        self.floor = 0
        self.floor_position = 0
        self._words: dict[int, int] = {}
        self._attempts: dict[int, int] = dict(cursor.attempts) if cursor is not None else {}
        if cursor is not None:
            self.floor = cursor.floor
            self.floor_position = cursor.floor_position
            self._take_bitmap(cursor)
        if control is not None:
            if control.consumer["floor"] >= self.floor:
                self.floor = control.consumer["floor"]
                self.floor_position = control.consumer["floor_position"]
            self._words = {}
            self._take_window(control)
        self._uncounted = control  # the table of attempts is long, and few ask for it

    def acked(self, seq: int) -> bool:
        """Whether that seq is settled."""
        if seq < self.floor:
            return True
        return bool(self._words.get(seq >> 5, 0) >> (seq & 31) & 1)

    def acked_above_floor(self) -> int:
        """Number of settled seqs above the floor."""
        first = self.floor >> 5
        total = 0
        for index, bits in self._words.items():
            if index == first:
                bits >>= self.floor & 31
            if index >= first:
                total += bits.bit_count()
        return total

    def attempts(self, seq: int) -> int:
        """Hand-outs of that seq so far, as far as they were counted."""
        if self._uncounted is not None:
            self._take_attempts(self._uncounted)
            self._uncounted = None
        return self._attempts.get(seq, 0)

    def _take_bitmap(self, cursor: Cursor) -> None:
        first = cursor.floor >> 5
        for index, (bits,) in enumerate(struct.iter_unpack("<I", cursor.bitmap)):
            if bits:
                self._words[first + index] = bits

    def _take_window(self, control: Control) -> None:
        """Takes the words whose tag and complement hold, then the record's own last word."""
        count = int(control.values["ack_window"]) // 32
        base = int(control.values["window_offset"])
        window = control.raw[base : base + count * layout.WINDOW_WORD.size]
        first = self.floor >> 5
        for slot, (value, complement) in enumerate(struct.iter_unpack("<QQ", window)):
            if value ^ complement != layout.MASK64:
                continue
            index = first + (slot - first) % count
            if value >> 32 == index & _TAG and value & _TAG:
                self._words[index] = value & _TAG
        # An ack flips the record first and stores the word second; a death between the two leaves
        # the word behind.
        last = control.consumer["word_value"]
        index = first + ((last >> 32) - first) % (1 << 32)
        if index < first + count:
            self._words[index] = self._words.get(index, 0) | (last & _TAG)

    def _take_attempts(self, control: Control) -> None:
        """One word a seq of the window: low 48 bits of the seq above, hand-outs below."""
        count = int(control.values["ack_window"])
        base = int(control.values["attempts_offset"])
        table = control.raw[base : base + 8 * count]
        for slot, (value,) in enumerate(struct.iter_unpack("<Q", table)):
            seq = self.floor + (slot - self.floor) % count
            if value & 0xFFFF and value >> 16 == seq & ((1 << 48) - 1):
                self._attempts[seq] = max(self._attempts.get(seq, 0), value & 0xFFFF)
