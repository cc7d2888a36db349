"""Logging of many processes through a queue: nothing that a handler took in is lost to a crash.

`QueueHandler` puts records into a queue, `QueueListener` hands them to the handlers of one process
and acks after these wrote. Both are the classes of `logging.handlers` with the same arguments, so
they fit where those do. `mpqueue logd` is a listener as a program, with one rotated file.

A record travels as a JSON object, never as a pickle: see `encode()`.

>>> import logging, mpqueue.logging
>>> handler = mpqueue.logging.QueueHandler("spool", durability="interval")  # doctest: +SKIP
>>> logging.getLogger().addHandler(handler)  # doctest: +SKIP
"""

from __future__ import annotations

from mpqueue.logging.handler import QueueHandler
from mpqueue.logging.listener import QueueListener
from mpqueue.logging.record import decode, encode

__all__ = ["QueueHandler", "QueueListener", "decode", "encode"]
