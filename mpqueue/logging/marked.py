"""MarkedFile: a rotated file that knows which items of a queue it holds: each is in it once.

The queue hands an item out again when its consumer died before the ack; the file must then know
whether it has it. Beside the file F lies F.mark, which says: F is inode I, its first S bytes are
whole lines, and they (with the rotated files) hold every item up to position P, which is the epoch
and seq of the last one. Positions only grow, in the queue's order, so one is enough.

Order of a batch: (1) lines are appended to F, (2) the mark is written, (3) the items are acked.

I1  Bytes of F after S belong to items that are not acked. They come again, so at start F is cut to
    S, which also removes a torn last line.
I2  Items up to P that come again are in the files. They are acked without being written.
I3  F is only rotated when all of its bytes are marked, so I1 is about one file.

Killed between (1) and (2): I1. Killed between (2) and (3): I2. The mark has two slots of 512 bytes,
written in turn, each with a checksum: one torn slot leaves the other, which is older, and nothing
was acked after the older one but what it covers.

Rotation renames F.1 to F.2 and so on, beginning with the last before the first free number, then F
to F.1, and makes a new F. Killed on the way it leaves a free number, which the next rotation fills:
no file is removed that should have been kept. The inode in the mark tells which file it speaks of;
a new F without a mark is empty. 64 hashed bytes before S guard against a reused inode.

Power loss, when `synced`: F is flushed between (1) and (2), the mark between (2) and (3), the
directory after every rename, so the order above is the order on the disk. When not `synced`, a mark
of another boot proves nothing about what lies behind S, and the queue's acks may be newer than it:
nothing is cut then, and lines may be missing or twice. A mark says whether it was synced; at start
both slots are rewritten and flushed, so that none is left that says so of another life.

Others may move F away, truncate it or put another file in its place, as logrotate does: it is
noticed before each batch. A file that is shorter than its mark says was changed by somebody else;
that is reported, and what was in it does not come again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from mpqueue import _native
from mpqueue.reader.control import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    Position = tuple[int, int]

SLOT = 512
_TAIL = 64
_LOCK_WAIT_S = 5.0  # a killed holder's lock may outlive its consumer role by a moment


class Mark(NamedTuple):
    """What one slot says."""

    turn: int  # slots are written in turn; the higher one counts
    queue: str
    epoch: int
    seq: int
    inode: int
    size: int
    tail: int  # hash of the last 64 bytes before size
    synced: bool
    boot: str


def position_of(item_id: str) -> Position:
    """Epoch and seq of an item, in the order of the queue."""
    _, epoch, seq = item_id.split(":")
    return int(epoch), int(seq)


class MarkedFile:
    """Appends items to a file, each once, through any number of deaths. One process at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        queue: str,
        *,
        synced: bool,
        max_bytes: int | None = None,
        backups: int | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Open `path`, make it if needed, and bring it to what its mark says.

        queue: its uuid; the marks of another queue do not hold for this one.
        synced: flush before each mark. max_bytes: rotate before a line that would make the file
        longer. backups: how many rotated files are kept; None keeps all. say: gets what an operator
        should know.

        Raises BlockingIOError while another process writes the file, OSError.
        """
        self.path = os.path.realpath(path)
        self._queue = queue
        self._synced = synced
        self._max_bytes = max_bytes
        self._backups = backups
        self._say = say
        self._boot = boot_id()
        self._position: Position = (0, 0)
        self._turn = 0
        self._fd = -1
        self._inode = self._size = 0
        self._tail = b""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._mark_fd = os.open(self.path + ".mark", flags, 0o666)
        except (FileNotFoundError, NotADirectoryError) as error:  # as true of the file itself
            raise OSError(error.errno, error.strerror, self.path) from error
        try:
            self._lock()
            self._recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file. What is written is marked already."""
        for fd in (self._fd, self._mark_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._mark_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def holds(self, position: Position) -> bool:
        """The item at this position is in the file, or in one that was rotated."""
        return position <= self._position

    def write(self, entries: Iterable[tuple[Position, bytes]]) -> None:
        """Append lines, in the order of their positions, and mark them; then their items be acked.

        An entry, however many lines it has, lies in one file. On an OSError nothing of what was not
        marked is left in the file, as far as that can be, and everything may be written again.
        """
        self._follow()
        lines: list[bytes] = []
        size = self._size
        last = self._position
        for position, data in entries:
            if self._max_bytes is not None and size and size + len(data) > self._max_bytes:
                self._append(lines, last)
                self._rotate()
                lines, size = [], self._size
            lines.append(data)
            size += len(data)
            last = position
        self._append(lines, last)

    # ---- the file

    def _append(self, lines: list[bytes], last: Position) -> None:
        if not lines:
            return
        data = b"".join(lines)
        try:
            self._write_all(data)
            self._flush(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise OSError(error.errno, error.strerror, self.path) from error
        self._size += len(data)
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
        self._position = last
        self._write_mark()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _flush(self, fd: int) -> None:
        if self._synced:
            os.fdatasync(fd)

    def _flush_directory(self) -> None:
        if self._synced:
            fd = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _rotate(self) -> None:
        """All bytes of the file are marked (I3)."""
        free = 1
        while free != self._backups and os.path.lexists(f"{self.path}.{free}"):
            free += 1
        for number in range(free, 0, -1):
            older = f"{self.path}.{number - 1}" if number > 1 else self.path
            os.replace(older, f"{self.path}.{number}")
            self._flush_directory()
        self._open()
        self._write_mark()

    def _follow(self) -> None:
        """Somebody may have moved, replaced or truncated the file since the last batch."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        if named is None or named.st_ino != self._inode:
            self._open()
        elif named.st_size != self._size:
            self._adopt(named.st_size)
        else:
            return
        self._write_mark()

    def _open(self) -> None:
        """Takes the file that has the name now, or makes it, as it is."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        found = os.fstat(fd)
        self._inode = found.st_ino
        self._adopt(found.st_size)
        self._flush_directory()

    def _adopt(self, size: int) -> None:
        """Goes on after what is there; a last line without its end gets it."""
        self._size = size
        self._tail = _bytes_before(self._fd, size)
        if self._tail and not self._tail.endswith(b"\n"):
            self._write_all(b"\n")
            self._size += 1
            self._tail = (self._tail + b"\n")[-_TAIL:]
        self._flush(self._fd)

    # ---- the mark

    def _lock(self) -> None:
        """The lock is the kernel's, on the mark: it goes with the process."""
        end = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._mark_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    text = "another process writes this file"
                    raise BlockingIOError(errno.EAGAIN, text, self.path) from None
            time.sleep(0.01)

    def _recover(self) -> None:
        mark = self._read_mark()
        if mark is not None:
            self._turn = mark.turn
            if mark.queue == self._queue:
                self._position = (mark.epoch, mark.seq)
                self._cut(mark)
            else:
                self._say(f"{self.path}: was written from another queue, {mark.queue}")
        self._open()
        # Into both slots, and to the disk: a slot of a synced life must not outlast what an
        # unsynced one writes and acks (it would cut that away after a power cut).
        self._write_mark()
        self._write_mark()
        os.fdatasync(self._mark_fd)

    def _cut(self, mark: Mark) -> None:
        """Takes away what lies behind the mark, in the file that it speaks of (I1)."""
        path = self._named(mark.inode)
        if path is None:
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < mark.size or _hash(_bytes_before(fd, mark.size)) != mark.tail:
                self._say(f"{path}: was changed by somebody else, or lost in a power cut")
            elif size > mark.size:
                if mark.synced or mark.boot == self._boot:
                    os.ftruncate(fd, mark.size)
                    self._flush(fd)
                else:
                    self._say(f"{path}: after the power cut lines may be twice or missing")
        finally:
            os.close(fd)

    def _named(self, inode: int) -> str | None:
        """The file or rotated file with this inode."""
        names = [self.path]
        prefix = os.path.basename(self.path) + "."
        for name in os.listdir(os.path.dirname(self.path)):
            if name.startswith(prefix) and name[len(prefix) :].isdigit():
                names.append(os.path.join(os.path.dirname(self.path), name))
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(name).st_ino == inode:
                    return name
        return None

    def _read_mark(self) -> Mark | None:
        slots = [os.pread(self._mark_fd, SLOT, SLOT * number) for number in (0, 1)]
        marks = [mark for mark in map(_parse, slots) if mark is not None]
        if not marks:
            if any(slots):
                self._say(f"{self.path}.mark: is damaged: the last lines may come twice")
            return None
        return max(marks)

    def _write_mark(self) -> None:
        self._turn += 1
        mark = Mark(
            self._turn,
            self._queue,
            *self._position,
            self._inode,
            self._size,
            _hash(self._tail),
            self._synced,
            self._boot,
        )
        try:
            os.pwrite(self._mark_fd, _serialise(mark), SLOT * (self._turn % 2))
            self._flush(self._mark_fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{self.path}.mark") from error


def _bytes_before(fd: int, size: int) -> bytes:
    start = max(0, size - _TAIL)
    return os.pread(fd, size - start, start)


def _hash(data: bytes) -> int:
    return _native.xxh64(data)


def _serialise(mark: Mark) -> bytes:
    """One line of 512 bytes: JSON, blanks, a checksum of all before it."""
    text = json.dumps(mark._asdict()).encode().ljust(SLOT - 17)
    assert len(text) == SLOT - 17
    return text + b"%016x\n" % _hash(text)


def _parse(slot: bytes) -> Mark | None:
    text, check = slot[: SLOT - 17], slot[SLOT - 17 :]
    if check != b"%016x\n" % _hash(text):
        return None
    try:
        return Mark(**json.loads(text))
    except (TypeError, ValueError):
        return None
