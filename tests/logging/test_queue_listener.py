"""Goal: a record is acked after the handlers wrote it, given back when one failed, and never stuck.

Method: handlers that fail as told. Waiting is for events and counters, not for time.
"""

from __future__ import annotations

import io
import logging
import logging.handlers
import threading
from pathlib import Path

import pytest

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue.logging import QueueHandler, QueueListener
from mpqueue.logging import listener as module


class Collector(logging.Handler):
    """Keeps messages; fails with what `failures` holds, first things first."""

    def __init__(self, *failures: BaseException, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.got: list[str] = []
        self.failures = list(failures)
        self.told = 0
        self.came = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.failures:
                raise self.failures.pop(0)
            self.got.append(record.getMessage())
        except Exception:
            self.handleError(record)
        finally:
            self.came.release()

    def handleError(self, record: logging.LogRecord) -> None:
        self.told += 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


def _log(q: mpqueue.Queue, *messages: str) -> None:
    logger = logging.Logger("app")
    logger.addHandler(QueueHandler(q))
    for message in messages:
        logger.info(message)


def test_stop_handles_what_was_put_before_it(open_queue: OpenQueue) -> None:
    """As the sentinel of the standard library does: here it is set while the first is in hand."""
    q = open_queue(durability="none")

    class Waits(Collector):
        def emit(self, record: logging.LogRecord) -> None:
            listener._stopping.wait()
            super().emit(record)

    handler = Waits()
    listener = QueueListener(q, handler)
    listener.start()
    _log(q, *map(str, range(500)))
    listener.stop()
    assert handler.got == list(map(str, range(500)))
    assert len(q) == 0 and not q.stats().consumer_attached
    listener.stop()  # harmless


def test_stop_is_local(open_queue: OpenQueue) -> None:
    """No sentinel in the shared queue: what is put later waits for the next listener."""
    q = open_queue()
    first, second = Collector(), Collector()
    with QueueListener(q, first):
        _log(q, "a")
    _log(q, "b")
    assert q.stats().items_enqueued == 2
    with QueueListener(q, second):
        pass
    assert (first.got, second.got) == (["a"], ["b"])


def test_stop_without_draining_leaves_the_rest(open_queue: OpenQueue) -> None:
    q = open_queue()
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Collector):
        def emit(self, record: logging.LogRecord) -> None:
            inside.set()
            go_on.wait()
            super().emit(record)

    handler = Slow()
    listener = QueueListener(q, handler)
    _log(q, "in hand", "left", "left too")
    listener.start()
    inside.wait()
    stopper = threading.Thread(target=listener.stop, kwargs={"drain": False})
    stopper.start()
    while not listener._stopping.is_set():
        pass
    go_on.set()
    stopper.join()
    assert handler.got == ["in hand"] and len(q) == 2


def test_stop_does_not_wait_for_what_comes_later(open_queue: OpenQueue) -> None:
    q = open_queue()
    handler = Collector()

    class Talker(Collector):
        """Each record it gets is followed by another one."""

        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            _log(q, "more")

    handler = Talker()
    listener = QueueListener(q, handler)
    listener.start()
    _log(q, "first")
    handler.came.acquire()
    listener.stop()
    assert len(q) == 1


def test_a_failing_handler_gives_the_record_back(open_queue: OpenQueue) -> None:
    """It hides its error in handleError; an ack behind that would lose the record."""
    q = open_queue()
    handler = Collector(OSError("disk full"), OSError("still"))
    other = Collector()
    with QueueListener(q, other, handler, max_attempts=1):
        _log(q, "first", "second")
        handler.came.acquire()
        handler.came.acquire()
        handler.came.acquire()
    stats = q.stats()
    assert handler.got == ["first", "second"], "in order"
    assert other.got == ["first", "second"], "what it has taken does not come to it again"
    assert handler.told == 2, "its own handleError still tells"
    assert (stats.items_nacked, stats.items_acked) == (2, 2)


def test_a_failing_handler_does_not_hold_up_stop(open_queue: OpenQueue) -> None:
    q = open_queue()

    class Broken(Collector):
        def emit(self, record: logging.LogRecord) -> None:
            self.failures = [OSError("for ever")]
            super().emit(record)

    handler = Broken()
    listener = QueueListener(q, handler)
    listener.start()
    _log(q, "kept")
    handler.came.acquire()
    listener.stop()
    assert handler.got == [] and len(q) == 1
    again = Collector()
    with QueueListener(q, again):
        pass
    assert again.got == ["kept"]


@pytest.mark.parametrize("where", ["emit raises", "flush raises", "target fails"])
def test_every_way_to_fail_is_noticed(open_queue: OpenQueue, where: str) -> None:
    q = open_queue()
    inner = Collector(OSError("once")) if where == "target fails" else Collector()
    failures = [OSError("once")]

    class Raises(Collector):
        def emit(self, record: logging.LogRecord) -> None:
            if where == "emit raises" and failures:
                raise failures.pop()
            inner.emit(record)

        def flush(self) -> None:
            if where == "flush raises" and failures:
                raise failures.pop()

    handler: logging.Handler = Raises()
    if where == "target fails":
        handler = logging.handlers.MemoryHandler(100, target=inner)
    with QueueListener(q, handler):
        _log(q, "message")
        inner.came.acquire()
    assert q.stats().items_nacked == 1
    assert inner.got[-1] == "message" and len(q) == 0


def test_a_buffer_is_flushed_before_the_ack(open_queue: OpenQueue) -> None:
    q = open_queue()
    unacked: list[int] = []

    class Target(Collector):
        def emit(self, record: logging.LogRecord) -> None:
            unacked.append(len(q))
            super().emit(record)

    target = Target()
    with QueueListener(q, logging.handlers.MemoryHandler(100, target=target)):
        _log(q, "one")
        target.came.acquire()
    assert unacked == [1]


def test_a_record_that_no_format_fits_is_given_up(open_queue: OpenQueue) -> None:
    """One record without a field that the format names must not stop all the others."""
    q = open_queue()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(request)s %(message)s"))
    told: list[logging.LogRecord] = []
    handler.handleError = told.append  # type: ignore[method-assign]
    logger = logging.Logger("app")
    logger.addHandler(QueueHandler(q))
    logger.info("without")
    logger.info("with", extra={"request": "r1"})
    with QueueListener(q, handler, max_attempts=3) as listener:
        while len(q):  # stop() would leave a failing record to the next listener
            pass
    assert stream.getvalue() == "r1 with\n"
    assert listener.given_up == 1 and len(told) == 3 and len(q) == 0
    assert handler.handleError == told.append, "what was the handler's own is put back"


def test_what_is_no_record_is_shown(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put(b"\xffjust a line")
    handler = Collector()
    with QueueListener(q, handler):
        _log(q, "next")
    shown, after = handler.got
    assert "is no log record" in shown and "\\xffjust a line" in shown
    assert after == "next" and len(q) == 0


def test_levels_of_handlers(open_queue: OpenQueue) -> None:
    q = open_queue()
    picky, all_of_it = Collector(level=logging.ERROR), Collector()
    with QueueListener(q, picky, all_of_it, respect_handler_level=True):
        _log(q, "info")
    assert (picky.got, all_of_it.got) == ([], ["info"])
    ignored = Collector(level=logging.ERROR)
    with QueueListener(q, ignored):
        _log(q, "info")
    assert ignored.got == ["info"]


def test_a_sealed_queue_ends_the_listener(open_queue: OpenQueue) -> None:
    q = open_queue()
    _log(q, "last")
    q.seal()
    handler = Collector()
    listener = QueueListener(q, handler)
    listener.start()
    thread = listener._thread
    assert thread is not None
    thread.join()
    assert handler.got == ["last"]
    listener.stop()


def test_start_takes_the_role_and_says_when_it_cannot(open_queue: OpenQueue, spool: Path) -> None:
    q = open_queue()
    with QueueListener(spool, Collector()) as listener:
        with pytest.raises(RuntimeError):
            listener.start()
        with pytest.raises(mpqueue.ConsumerBusy):
            QueueListener(q).start()
    with QueueListener(q):
        pass
    with pytest.raises(ValueError, match="max_attempts"):
        QueueListener(q, max_attempts=0)


def test_a_killed_listener_loses_nothing(
    spool: Path, tmp_path: Path, run_python: RunPython
) -> None:
    """Dead after the write and before the ack: the record comes again."""
    out = tmp_path / "out"
    script = """
        import logging, os, signal, sys
        import mpqueue
        from mpqueue.logging import QueueListener, QueueHandler
        q = mpqueue.Queue(sys.argv[1], segment_size=1 << 20, durability="none")
        log = logging.Logger("app")
        log.addHandler(QueueHandler(q))
        for number in range(5):
            log.info("%d", number)
        if os.fork() == 0:
            class Dies(logging.FileHandler):
                def flush(self):
                    super().flush()
                    if os.path.getsize(sys.argv[2]) >= 6:
                        os.kill(os.getpid(), signal.SIGKILL)
            QueueListener(q, Dies(sys.argv[2])).start()
            signal.pause()
        _, status = os.wait()
        assert os.WTERMSIG(status) == signal.SIGKILL
        with QueueListener(q, logging.FileHandler(sys.argv[2])):
            pass
        assert len(q) == 0
        """
    run_python(script, spool, out)
    assert out.read_text().split() == ["0", "1", "2", "2", "3", "4"]


def test_a_forked_child_has_no_listener(spool: Path, tmp_path: Path, run_python: RunPython) -> None:
    """stop() and exit in the child neither hang nor end the parent's listener."""
    out = tmp_path / "out"
    run_python(
        """
        import logging, os, sys, warnings
        import mpqueue
        from mpqueue.logging import QueueListener, QueueHandler
        warnings.simplefilter("ignore", DeprecationWarning)
        file = logging.FileHandler(sys.argv[2])
        listener = QueueListener(sys.argv[1], file)
        listener.start()
        log = logging.Logger("app")
        log.addHandler(QueueHandler(sys.argv[1]))
        log.info("before")
        pid = os.fork()
        if pid == 0:
            log.info("child")
            try:
                listener.start()
            except mpqueue.ConsumerBusy:
                listener.stop()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        log.info("after")
        listener.stop()
        """,
        spool,
        out,
    )
    assert out.read_text().split() == ["before", "child", "after"]
