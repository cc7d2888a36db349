"""stderr of `mpqueue exec`: what its commands say is passed on as it comes, and its end is kept.

Nothing here waits. Whoever reads stderr may stand still; the commands then stand still as well, as
they would without a pipe in between, but deadlines, leases and signals do not.
"""

from __future__ import annotations

import os
import selectors

from mpqueue.cli import common

STDERR = 2
CHUNK = 1 << 16  # what a pipe holds
ATOMIC = 4096  # what a pipe that is writable takes without waiting
FULL = 1 << 18
TAIL = 400


class Voice:
    """stderr of one command: `writing` is the command's end, the other one is read here."""

    def __init__(self, talk: Talk) -> None:
        """Use `talk.listen()`."""
        self._talk = talk
        self.tail = b""
        """The last bytes, at most `TAIL`."""
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)

    def hear(self) -> None:
        """Takes all that is there. It may go on behind the command's end, by what that started."""
        if self.reading < 0:
            return
        try:
            chunk = os.read(self.reading, CHUNK)
        except BlockingIOError:
            return
        self.tail = (self.tail + chunk)[-TAIL:]
        if chunk:
            self._talk.pass_on(chunk)
        else:
            self._talk.forget(self)


class Talk:
    """Passes on what commands and exec itself say, in the order in which it came."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._voices: set[Voice] = set()
        self._pending = bytearray()
        self._deaf = False
        self._in_line = False

    @property
    def pending(self) -> bool:
        """stderr has not taken all of it yet."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """stderr is so far behind that nothing more is read."""
        return len(self._pending) > FULL

    def say(self, text: str) -> None:
        """One line of talk, after everything that was heard before."""
        line = f"mpqueue: {common.shown(text)}\n".encode("utf-8", "backslashreplace")
        self.pass_on(b"\n" + line if self._in_line else line)

    def listen(self) -> Voice:
        """A pipe for the stderr of one command."""
        voice = Voice(self)
        self._voices.add(voice)
        if not self.full:
            self._selector.register(voice.reading, selectors.EVENT_READ, voice.hear)
        return voice

    def forget(self, voice: Voice) -> None:
        """Nothing more comes from there."""
        if voice in self._voices:
            self._voices.remove(voice)
            self._listen(voice, False)
            os.close(voice.reading)
            voice.reading = -1

    def pass_on(self, chunk: bytes) -> None:
        """Sees that stderr gets it, unless nobody reads that any more."""
        if self._deaf:
            return
        self._in_line = not chunk.endswith(b"\n")
        if not self._pending:
            self._selector.register(STDERR, selectors.EVENT_WRITE, self._write)
        before = self.full
        self._pending += chunk
        if self.full and not before:
            for voice in self._voices:
                self._listen(voice, False)

    def close(self) -> None:
        """Hears no one any more."""
        for voice in list(self._voices):
            self.forget(voice)

    def _write(self) -> None:
        before = self.full
        try:
            del self._pending[: os.write(STDERR, self._pending[:ATOMIC])]
        except OSError:
            self._deaf = True
            self._pending.clear()
        if not self._pending:
            self._selector.unregister(STDERR)
        if before and not self.full:
            for voice in self._voices:
                self._listen(voice, True)

    def _listen(self, voice: Voice, listens: bool) -> None:
        known = voice.reading in self._selector.get_map()
        if listens and not known:
            self._selector.register(voice.reading, selectors.EVENT_READ, voice.hear)
        if known and not listens:
            self._selector.unregister(voice.reading)
