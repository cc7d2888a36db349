"""Log records through QueueHandler and QueueListener: mpqueue's against the standard library's.

The standard ones have a multiprocessing.Queue between them, in memory; its put hands the record to
a thread of the producer. Handlers at the end drop what they get. Records have two arguments.
"""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import systems
from systems import load


class _Counter(logging.Handler):
    """Takes records until there were enough."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.done = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


class _Logging(systems.System):
    def handler(self) -> logging.handlers.QueueHandler:
        raise NotImplementedError(self.name)

    def listener(self, handler: logging.Handler) -> logging.handlers.QueueListener:
        raise NotImplementedError(self.name)

    def push(self, count: int) -> Iterator[None]:
        logger = logging.Logger("benchmark")
        handler = self.handler()
        logger.addHandler(handler)
        info = logger.info
        yield
        for number in range(count):
            info("request %d of %s", number, "somebody")
        yield
        handler.close()

    def pull(self, count: int) -> Iterator[None]:
        counter = _Counter(count)
        listener = self.listener(counter)
        yield
        listener.start()
        counter.done.wait()
        yield
        listener.stop()


class Mpqueue(_Logging):
    """Waits for room as the other one's put does, within the same bound as other benchmarks."""

    def __init__(self, durability: str) -> None:
        self.name = f"mpqueue.logging {durability}"
        self.note = "acked after the handler"
        self._durability = durability

    def prepare(self, directory: Path) -> None:
        super().prepare(directory)
        load("mpqueue").Queue(directory / "queue", durability=self._durability).close()

    def handler(self) -> logging.handlers.QueueHandler:
        made: logging.handlers.QueueHandler = load("mpqueue.logging").QueueHandler(
            "queue", timeout=None
        )
        return made

    def listener(self, handler: logging.Handler) -> logging.handlers.QueueListener:
        made: logging.handlers.QueueListener = load("mpqueue.logging").QueueListener(
            "queue", handler
        )
        return made


class Standard(_Logging):
    name = "logging.handlers, multiprocessing.Queue"
    note = "in memory"

    def prepare(self, directory: Path) -> None:
        super().prepare(directory)
        self._queue: Any = multiprocessing.get_context("fork").Queue()

    def handler(self) -> logging.handlers.QueueHandler:
        return logging.handlers.QueueHandler(self._queue)

    def listener(self, handler: logging.Handler) -> logging.handlers.QueueListener:
        return logging.handlers.QueueListener(self._queue, handler)


def _pair(title: str, key: str, options: harness.Options, producers: int) -> harness.Report:
    ours, theirs = Mpqueue("interval"), Standard()
    contenders: list[systems.System] = [ours, Mpqueue("none"), theirs]
    report = harness.Report(
        title, harness.interleave(contenders, options, producers=producers, consumers=1)
    )
    report.ratio(key, f"interval against {theirs.name}", ours.name, theirs.name)
    return report


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """From the common start to the last record handled, with one and four producers."""
    return [
        _pair(
            f"{producers} process(es) log, one handles", f"logging/{producers}", options, producers
        )
        for producers in (1, 4)
    ]


if __name__ == "__main__":
    harness.main(__doc__, measure)
