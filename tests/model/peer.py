"""The second process of the model test: obeys one JSON line at a time until it is killed.

Streams report every fact by one write right after it became one, so that a SIGKILL leaves at most
one put, hand-out or ack unreported.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import mpqueue


def body_of(stream: int, number: int, size: int) -> bytes:
    """Payload `number` of a stream."""
    return (b"%d.%d:" % (stream, number)).ljust(size, b".")


class Peer:
    """One handle, at times the consumer role, and what is held."""

    def __init__(self, path: str) -> None:
        self.queue = mpqueue.Queue(path, create=False)
        self.consumer: mpqueue.Consumer | None = None
        self.held: dict[int, mpqueue.Item] = {}

    def tell(self, *fact: object) -> None:
        """One line, one system call."""
        os.write(1, json.dumps(fact).encode() + b"\n")

    def put(self, bodies: list[str]) -> None:
        seqs = self.queue.put_many([body.encode() for body in bodies], timeout=0)
        self.tell("ok", seqs.start)

    def take_role(self) -> None:
        self.consumer = self.queue.consumer()
        self.tell("ok")

    def reserve(self, number: int) -> None:
        assert self.consumer is not None
        items = self.consumer.reserve_many(number, timeout=0)
        self.held.update((item.seq, item) for item in items)
        self.tell("ok", [(item.seq, item.body.decode(), item.attempts) for item in items])

    def ack(self, seqs: list[int]) -> None:
        assert self.consumer is not None
        self.consumer.ack_many([self.held.pop(seq) for seq in seqs])
        self.tell("ok")

    def stream_put(self, stream: int, sizes: list[int]) -> None:
        """Puts one batch of len(sizes) after the other for ever; sealed and full end it."""
        number = 0
        try:
            while True:
                bodies = [body_of(stream, number + i, size) for i, size in enumerate(sizes)]
                self.tell("a", self.queue.put_many(bodies, timeout=0).start)
                number += len(sizes)
        except (mpqueue.Full, mpqueue.Sealed, mpqueue.TooLarge) as error:
            self.tell("end", type(error).__name__)

    def stream_take(self) -> None:
        """Reserves and acks one by one until nothing is ready."""
        assert self.consumer is not None
        while (item := self.consumer.reserve(timeout=0)) is not None:
            self.tell("d", item.seq, item.body.decode(), item.attempts)
            item.ack()
            self.tell("k", item.seq)
        self.tell("end", "")

    def run(self) -> None:
        """Obeys until the pipe is closed."""
        self.tell("ok")
        for line in sys.stdin:
            name, arguments = json.loads(line)
            method: Any = getattr(self, name)
            try:
                method(*arguments)
            except mpqueue.MpqueueError as error:
                self.tell("error", type(error).__name__, getattr(error, "reason", ""))
        self.queue.close()


if __name__ == "__main__":
    Peer(sys.argv[1]).run()
