"""A look into the shared memory of the queue: who holds the header lock at this instant."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from mpqueue import layout

_OWNER = layout.CONTROL.offset("owner")
_TAKEOVERS = layout.CONTROL.offset("takeovers")
_MEMBERS = layout.CONTROL.offset("members_offset")
_MAX_MEMBERS = layout.CONTROL.offset("max_members")
_WORD = struct.Struct("<Q")


class Control:
    """The control file as it is now, mapped read-only; a lost boot replaces the file."""

    def __init__(self, queue: Path) -> None:
        with open(queue / "control", "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Unmaps."""
        self._map.close()

    def _word(self, offset: int) -> int:
        return int(_WORD.unpack_from(self._map, offset)[0])

    @property
    def takeovers(self) -> int:
        """How often the lock was taken over from the dead since the file was made."""
        return self._word(_TAKEOVERS)

    def incarnations(self) -> dict[int, int]:
        """incarnation -> pid of the members."""
        found = {}
        start = self._word(_MEMBERS)
        (count,) = struct.unpack_from("<I", self._map, _MAX_MEMBERS)
        for offset in range(start, start + count * layout.MEMBER.size, layout.MEMBER.size):
            incarnation, pid = struct.unpack_from("<2Q", self._map, offset)
            if incarnation:
                found[incarnation] = pid
        return found

    def owner(self) -> int:
        """The incarnation that holds the header lock, 0 when nobody does."""
        return self._word(_OWNER) >> 1
