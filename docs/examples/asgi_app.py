"""Accepts work in an ASGI server: the answer 200 means that the work is in the queue, on the disk.

    MPQUEUE_PATH=spool uvicorn --workers 4 asgi_app:app

A put waits for its flush, so it goes to a thread: the event loop serves others meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import mpqueue

queue = mpqueue.Queue(os.environ.get("MPQUEUE_PATH", "spool"))

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """POST a body; the answer is the number of the item."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        seq = await asyncio.to_thread(queue.put_nowait, body)
    except mpqueue.Full:
        await _answer(send, 503, b"full\n")
    else:
        await _answer(send, 200, b"%d\n" % seq)


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
