"""Goal: a log call ends up in the queue, and whatever goes wrong it does not raise.

Method: real loggers and queues; another process where it matters.
"""

from __future__ import annotations

import json
import logging
import logging.config
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue.logging import QueueHandler, decode

Logger = Callable[..., tuple[logging.Logger, QueueHandler]]


@pytest.fixture
def logger(spool: Path) -> Iterator[Logger]:
    """A logger of its own with one QueueHandler."""
    made = logging.Logger("app")

    def make(queue: object = spool, **options: object) -> tuple[logging.Logger, QueueHandler]:
        handler = QueueHandler(queue, **options)
        made.addHandler(handler)
        return made, handler

    yield make
    for handler in made.handlers:
        handler.close()


def _messages(q: mpqueue.Queue) -> list[str]:
    with q.consumer() as consumer:
        return [decode(item.body).getMessage() for item in consumer.drain()]


def test_records_are_in_the_queue_in_order(logger: Logger, open_queue: OpenQueue) -> None:
    log, handler = logger(open_queue())
    for number in range(3):
        log.info("number %d", number)
    assert _messages(handler.queue) == ["number 0", "number 1", "number 2"]


def test_full_drops_counts_and_tells_once(
    logger: Logger, open_queue: OpenQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    q = open_queue(capacity=2)
    log, handler = logger(q)
    for number in range(6):
        log.info("number %d", number)
    assert handler.dropped == 4
    assert q.stats().items_dropped == 4
    assert capsys.readouterr().err.count("--- Logging error ---") == 1
    assert _messages(q) == ["number 0", "number 1"]
    log.info("room again")
    notice, last = _messages(q)
    assert notice == f"4 log records were dropped: {q.path} was full" and last == "room again"
    log.info("and no second notice")
    assert _messages(q) == ["and no second notice"]


def test_full_is_waited_for_with_a_timeout(logger: Logger, open_queue: OpenQueue) -> None:
    q = open_queue(capacity=1)
    log, handler = logger(q, timeout=None)
    log.info("first")
    waits = q.stats().waits
    thread = threading.Thread(target=log.info, args=("second",))
    thread.start()
    while q.stats().waits == waits:
        pass
    assert _messages(q)[0] == "first"
    thread.join()
    assert handler.dropped == 0
    with q.consumer() as consumer:
        consumer.ack_up_to(0)


FAILURES: dict[str, Callable[[mpqueue.Queue], object]] = {
    "sealed": lambda q: q.seal(),
    "closed": lambda q: q.close(),
    "too large": lambda q: q.set_options(max_item=1),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_of_the_queue_raises(
    logger: Logger, open_queue: OpenQueue, capsys: pytest.CaptureFixture[str], failure: str
) -> None:
    q = open_queue()
    log, handler = logger(q)
    FAILURES[failure](q)
    log.info("lost")
    assert "--- Logging error ---" in capsys.readouterr().err
    assert handler.dropped == 0, "that counts what found no room"


def test_a_message_that_cannot_be_formatted_is_told_as_ever(
    logger: Logger, open_queue: OpenQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    log, handler = logger(open_queue())
    log.info("%d", "no number")
    log.info("good")
    assert "--- Logging error ---" in capsys.readouterr().err
    assert _messages(handler.queue) == ["good"]


def test_an_open_queue_stays_the_callers(logger: Logger, open_queue: OpenQueue) -> None:
    q = open_queue()
    _, handler = logger(q)
    handler.close()
    assert not q.closed
    with pytest.raises(TypeError, match="durability"):
        QueueHandler(q, durability="none")
    with pytest.raises(ValueError, match="timeout"):
        QueueHandler(q, timeout=-1)


def test_a_path_is_opened_closed_and_opened_again(logger: Logger, spool: Path) -> None:
    """At exit handlers are closed before the last records are logged."""
    log, handler = logger(durability="none", segment_size=1 << 20)
    log.info("first")
    handler.close()
    assert handler.queue.closed
    log.info("late")
    with mpqueue.Queue(spool) as q:
        assert q.options.durability == "none"
        assert _messages(q) == ["first", "late"]


def test_flush_reaches_the_disk(logger: Logger, open_queue: OpenQueue) -> None:
    q = open_queue(durability="none")
    log, handler = logger(q)
    log.info("written")
    assert q.stats().unsynced_items == 1
    handler.flush()
    assert q.stats().unsynced_items == 0


def test_what_is_logged_inside_a_put_follows_it(logger: Logger, open_queue: OpenQueue) -> None:
    """The queue logs what it notices, from inside a put, to handlers that put."""
    q = open_queue()
    log, _ = logger(q)

    class Talker:
        def __str__(self) -> str:
            log.info("from inside")
            return "outer"

    log.info("%s", Talker())
    log.info("next")
    assert _messages(q) == ["outer", "from inside", "next"]


def test_endless_talk_inside_a_put_ends(logger: Logger, open_queue: OpenQueue) -> None:
    q = open_queue()
    log, _ = logger(q)

    class Talker:
        def __str__(self) -> str:
            log.info("%s", self)
            return "again"

    log.info("%s", Talker())
    log.info("next")
    assert _messages(q).count("next") == 1


def test_a_signal_handler_may_log_and_raise(logger: Logger, open_queue: OpenQueue) -> None:
    """It runs inside a log call that waits for room."""
    q = open_queue(capacity=1)
    log, handler = logger(q, timeout=None)
    log.info("first")

    def interrupt(number: int, frame: object) -> None:
        handler._timeout = 0.0
        log.info("from the signal handler")
        raise KeyboardInterrupt

    waits = q.stats().waits
    previous = signal.signal(signal.SIGUSR1, interrupt)

    def send() -> None:
        while q.stats().waits == waits:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            log.info("interrupted")
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    assert _messages(q) == ["first"]
    assert handler.dropped == 1, "the record of the signal handler found no room either"
    log.info("goes on")
    assert _messages(q) == [f"1 log record was dropped: {q.path} was full"]


def test_forked_children_log_at_once(spool: Path, run_python: RunPython) -> None:
    """Also forked by another thread while one logs, and counting drops for themselves."""
    run_python(
        """
        import logging, os, sys, threading, warnings
        import mpqueue
        from mpqueue.logging import QueueHandler, decode
        warnings.simplefilter("ignore", DeprecationWarning)
        handler = QueueHandler(sys.argv[1], durability="none", segment_size=1 << 20)
        log = logging.getLogger("app")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        handler.dropped = 5
        going = True
        def chatter():
            while going:
                log.info("parent")
        threads = [threading.Thread(target=chatter, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        children = []
        for number in range(8):
            pid = os.fork()
            if pid == 0:
                log.info("child %d", number)
                os._exit(handler.dropped)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 8
        going = False
        for thread in threads:
            thread.join()
        assert handler.dropped == 5
        with handler.queue.consumer() as consumer:
            records = [decode(item.body) for item in consumer.drain()]
        children_said = sorted(r.getMessage() for r in records if r.getMessage() != "parent")
        assert children_said == [f"child {number}" for number in range(8)], children_said
        assert {r.process for r in records} == {os.getpid(), *children}
        """,
        spool,
    )


def test_records_logged_at_exit_arrive(spool: Path, run_python: RunPython) -> None:
    run_python(
        """
        import atexit, logging, sys
        from mpqueue.logging import QueueHandler
        log = logging.getLogger("app")
        atexit.register(lambda: log.warning("after the end"))
        log.addHandler(QueueHandler(sys.argv[1], durability="none", segment_size=1 << 20))
        atexit.register(lambda: log.warning("at the end"))
        log.warning("on the way")
        """,
        spool,
    )
    with mpqueue.Queue(spool) as q:
        assert _messages(q) == ["on the way", "at the end", "after the end"]


def test_importing_it_leaves_the_standard_module_alone(run_python: RunPython) -> None:
    run_python(
        """
        import mpqueue.logging
        import logging
        assert logging.__file__.count("mpqueue") == 0
        assert mpqueue.logging.QueueHandler is not logging.handlers.QueueHandler
        from mpqueue import *
        assert logging.__name__ == "logging"
        """
    )


def test_every_public_name_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/logging.md").read_text()
    assert [name for name in mpqueue.logging.__all__ if f"`{name}" not in page] == []
    fields = json.loads(mpqueue.logging.encode(logging.makeLogRecord({"user": 1})))
    assert [name for name in fields if f"`{name}`" not in page] == []
