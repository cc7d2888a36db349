"""Segment files: their names, headers and roll records, and reading their bytes in pieces."""

from __future__ import annotations

import os
import re
import stat
import weakref
from pathlib import Path
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.files import Finding, Meta, open_file, xxh64

SEGMENT_NAME = re.compile(r"segment-(\d{12})")


class Roll(NamedTuple):
    """The valid roll record of a segment."""

    base_seq: int
    epoch: int
    previous_end: int
    previous_seq: int
    durable_position: int
    entered_at: int


def list_segments(directory: Path) -> dict[int, str]:
    """Generation to file name, ascending. Raises OSError."""
    found = {}
    for name in os.listdir(directory):
        match = SEGMENT_NAME.fullmatch(name)
        if match is not None:
            found[int(match[1])] = name
    return dict(sorted(found.items()))


class SegmentFile:
    """One segment, read through a window of at most `CHUNK` bytes (more for a larger item).

    Its descriptor is closed by `close`, or when nobody refers to it any more.
    """

    CHUNK = 1 << 20

    def __init__(self, directory: Path, generation: int, meta: Meta) -> None:
        """Opens the file and reads its headers; raises OSError (FileNotFoundError: reclaimed)."""
        self.generation = generation
        self.name = layout.segment_name(generation)
        self._descriptor = open_file(directory / self.name)
        self._closer = weakref.finalize(self, os.close, self._descriptor)
        # Read-ahead would leave large folios behind in the page cache of a live segment, and every
        # later flush of a small item would write such a folio whole.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self.size = os.fstat(self._descriptor).st_size
        self._start = 0
        self._data = b""
        head = self._pread(0, layout.SEGMENT_FIRST)
        self.findings: list[Finding] = []
        self.whole = False  # it is as long as its header says
        self.as_made = False  # ... and not longer
        self.valid = self._read_static(head, meta)
        self.roll = self._read_roll(head, meta)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._closer()

    def window(self, offset: int, length: int) -> tuple[bytes, int]:
        """A buffer that holds bytes `offset`..`offset + length` of the file, and where it starts.

        Shorter at the end of the file. Raises OSError.
        """
        if offset < self._start or offset + length > self._start + len(self._data):
            self._data = self._pread(offset, max(length, self.CHUNK))
            self._start = offset
        return self._data, self._start

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, shorter at its end. Raises OSError."""
        data, start = self.window(offset, length)
        return data[offset - start : offset - start + length]

    def forget(self) -> None:
        """Drops the buffer, so that the next read sees the file as it is then."""
        self._data = b""

    def _pread(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:
            part = os.pread(self._descriptor, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_static(self, head: bytes, meta: Meta) -> bool:
        uuid = bytes.fromhex(meta.uuid)
        stated: int | None = None
        for letter, offset in (("A", layout.SEGMENT_HEADER_A), ("B", layout.SEGMENT_HEADER_B)):
            raw = head[offset : offset + layout.SEGMENT_HEADER.size]
            if len(raw) == layout.SEGMENT_HEADER.size:
                values = layout.SEGMENT_HEADER.unpack(raw)
                if (
                    values["magic"] == layout.SEGMENT_MAGIC
                    and values["version"] == layout.FORMAT_VERSION
                    and values["uuid"] == uuid
                    and values["generation"] == self.generation
                    and values["hash"] == xxh64(raw[:-8], meta.hash_seed)
                ):
                    stated = values["bytes"]
                    continue
            self.findings.append(
                Finding("warning", self.name, offset, -1, f"static header {letter} is damaged")
            )
        self.whole = stated is not None and stated <= self.size
        self.as_made = stated == self.size
        if stated is not None and stated != self.size:
            text = f"is {self.size} bytes long, its header says {stated}"
            if stated < self.size:
                text += "; what is behind that is not looked at"
            self.findings.append(Finding("warning", self.name, -1, -1, text))
            self.size = min(self.size, stated)
        return stated is not None

    def _read_roll(self, head: bytes, meta: Meta) -> Roll | None:
        best: Roll | None = None
        seed = (meta.hash_seed + self.generation * layout.SEED_GENERATION) & layout.MASK64
        for letter, offset in (("A", layout.SEGMENT_ROLL_A), ("B", layout.SEGMENT_ROLL_B)):
            raw = head[offset : offset + layout.ROLL.size]
            if len(raw) < layout.ROLL.size:
                continue
            values = layout.ROLL.unpack(raw)
            if (
                values["magic"] == layout.ROLL_MAGIC
                and values["generation"] == self.generation
                and values["hash"] == xxh64(raw[:-8], seed)
            ):
                best = Roll(*(values[name] for name in Roll._fields))
            elif values["generation"] == self.generation and values["magic"] != 0:
                text = f"roll record {letter} is damaged; its twin or the frames replace it"
                self.findings.append(Finding("warning", self.name, offset, -1, text))
        return best


def open_segment(directory: Path, generation: int, meta: Meta) -> SegmentFile | None:
    """The segment, or None when it was reclaimed meanwhile or is no regular file, which the core
    takes for missing too. Raises OSError otherwise."""
    try:
        if not stat.S_ISREG(os.lstat(directory / layout.segment_name(generation)).st_mode):
            return None
        return SegmentFile(directory, generation, meta)
    except FileNotFoundError:
        return None
