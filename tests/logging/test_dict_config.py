"""Goal: the recipes of docs/logging.md for `logging.config.dictConfig` work on each Python.

Method: run them in a process of their own, as it is configured once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mpqueue
from conftest import RunPython
from mpqueue.logging import decode

WITH_LISTENER = sys.version_info >= (3, 12)


def test_the_factory_works_everywhere(spool: Path, run_python: RunPython) -> None:
    run_python(
        """
        import logging, logging.config, sys
        logging.config.dictConfig({
            "version": 1,
            "formatters": {"short": {"format": "<%(message)s>"}},
            "handlers": {
                "queue": {
                    "()": "mpqueue.logging.QueueHandler",
                    "queue": sys.argv[1],
                    "durability": "interval",
                    "level": "INFO",
                    "formatter": "short",
                },
            },
            "root": {"level": "DEBUG", "handlers": ["queue"]},
        })
        logging.getLogger("app").debug("not this")
        logging.getLogger("app").info("this")
        """,
        spool,
    )
    with mpqueue.Queue(spool) as q, q.consumer() as consumer:
        assert [decode(item.body).getMessage() for item in consumer.drain()] == ["<this>"]
        assert q.options.durability == "interval"


@pytest.mark.skipif(not WITH_LISTENER, reason="dictConfig knows listeners from Python 3.12 on")
def test_the_listener_key_works(spool: Path, tmp_path: Path, run_python: RunPython) -> None:
    run_python(
        """
        import logging, logging.config, logging.handlers, sys
        logging.config.dictConfig({
            "version": 1,
            "formatters": {"short": {"format": "<%(name)s %(message)s>"}},
            "handlers": {
                "file": {
                    "class": "logging.FileHandler",
                    "filename": sys.argv[2],
                    "formatter": "short",
                    "level": "WARNING",
                },
                "queue": {
                    "class": "mpqueue.logging.QueueHandler",
                    "queue": {"()": "mpqueue.Queue", "path": sys.argv[1], "durability": "none"},
                    "listener": "mpqueue.logging.QueueListener",
                    "handlers": ["file"],
                    "respect_handler_level": True,
                },
            },
            "root": {"level": "DEBUG", "handlers": ["queue"]},
        })
        listener = logging.getHandlerByName("queue").listener
        assert isinstance(listener, logging.handlers.QueueListener)
        listener.start()
        logging.getLogger("app").warning("this")
        logging.getLogger("app").info("not this")
        listener.stop()
        """,
        spool,
        tmp_path / "out",
    )
    assert (tmp_path / "out").read_text() == "<app this>\n"
