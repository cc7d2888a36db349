"""The small HTTP server behind `mpqueue metrics --listen`: GET and HEAD of /metrics, nothing else.

No authentication and no encryption: it binds to the loopback address unless told otherwise. It
never reads a request's body and answers nothing that came with the request.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpqueue import metrics
from mpqueue.cli import common

REQUEST_S = 5.0
"""How long a client may be silent, and how long the end waits for answers on their way."""
_INDEX = "mpqueue: metrics are at /metrics\n"


class Server(socketserver.ThreadingTCPServer):
    """Listens on one address; each connection is one request on a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True  # a client that says nothing does not hold up the end
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        paths: Sequence[str],
        report: Callable[[str, Exception], object],
    ) -> None:
        """Binds and listens. Raises OSError, also for a host that has no address."""
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, where = found[0]
        self.paths = paths
        self.report = report
        self._idle = threading.Condition()
        self._answers = 0
        super().__init__((str(where[0]), int(where[1])), Handler)

    @property
    def url(self) -> str:
        """Where it can be scraped."""
        host, port = self.server_address[:2]
        host = host if isinstance(host, str) else host.decode()
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """While an answer is made and sent: `server_close` waits for it."""
        with self._idle:
            self._answers += 1
        try:
            yield
        finally:
            with self._idle:
                self._answers -= 1
                self._idle.notify_all()

    def server_close(self) -> None:
        """Takes no more connections; answers that are on their way are finished."""
        super().server_close()
        with self._idle:
            self._idle.wait_for(lambda: self._answers == 0, REQUEST_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or stood still is its own affair; anything else is said."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            common.say(f"a scrape failed: {error!r}")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = REQUEST_S
    server_version = "mpqueue"
    sys_version = ""

    def do_GET(self) -> None:
        """The metrics, in the format that the client accepts."""
        with self.server.answering():
            path = self.path.partition("?")[0]
            if path == "/metrics":
                new = "application/openmetrics-text" in self.headers.get("Accept", "")
                text = metrics.render(self.server.paths, openmetrics=new, report=self.server.report)
                self._answer(200, metrics.OPENMETRICS if new else metrics.TEXT, text)
            else:
                self._answer(200 if path == "/" else 404, "text/plain; charset=utf-8", _INDEX)

    do_HEAD = do_GET

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: scrapes come every few seconds."""


def serve(
    address: tuple[str, int], paths: Sequence[str], report: Callable[[str, Exception], object]
) -> None:
    """Serves until SIGINT or SIGTERM raises in this thread; answers under way are finished.

    Prints the URL on stdout as soon as connections are taken. Raises OSError when it cannot bind.
    """
    try:
        listener = Server(address, paths, report)
    except OSError as error:
        where = "{}:{}".format(*address)
        raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
    with listener as server:
        with contextlib.suppress(BrokenPipeError):
            print(server.url, flush=True)
        server.serve_forever()
