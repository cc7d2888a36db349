"""Accepts work in a WSGI server: the answer 200 means that the work is in the queue, on the disk.

    MPQUEUE_PATH=spool gunicorn --workers 4 wsgi_app:app

The handle is made at import. With `preload_app` the workers inherit it from the master, without it
each worker opens its own; both work, and no hook of the server is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import mpqueue

queue = mpqueue.Queue(os.environ.get("MPQUEUE_PATH", "spool"))


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """POST a body; the answer is the number of the item."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        # No waiting for room: a worker that waits serves nobody, and under gevent none of its
        # greenlets. The client is told to come again instead.
        seq = queue.put_nowait(body)
    except mpqueue.Full:
        return _answer(start_response, "503 Service Unavailable", b"full\n", ("Retry-After", "1"))
    return _answer(start_response, "200 OK", b"%d\n" % seq)


def _answer(
    start_response: Callable[..., object], status: str, body: bytes, *headers: tuple[str, str]
) -> Iterable[bytes]:
    plain = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    start_response(status, [*plain, *headers])
    return [body]
