"""mpqueue for asyncio: puts that do not hold up the loop, reserves that any number of tasks await.

>>> async def main() -> None:
...     async with AsyncQueue(mpqueue.Queue("spool")) as q:
...         await q.put(b"hello")
...         async with q.consumer() as consumer:
...             async for item in consumer:  # acked when the next one is asked for
...                 await handle(item.body)

A reserve costs no thread: the loop watches `Consumer.fileno()`, and one callback hands what is
ready to the tasks that wait, first come, first served. Puts try at once and go to a few threads
only for what has to wait: room, the disk, or another process's turn.

Objects of this module belong to one event loop and one process. In a forked child their calls raise
Closed, and close() does nothing; the handle itself works there: wrap it anew.
"""

from __future__ import annotations

from mpqueue.aio.consumer import AsyncConsumer
from mpqueue.aio.queue import AsyncQueue

__all__ = ["AsyncConsumer", "AsyncQueue"]
