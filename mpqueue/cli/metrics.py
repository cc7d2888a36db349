"""`mpqueue metrics`: numbers of queues for Prometheus, on stdout, into a file or over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_paths(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--textfile",
        metavar="FILE",
        help="replace FILE in one step, for the textfile collector of node_exporter",
    )
    where.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        type=_address,
        help="serve /metrics over HTTP until a signal comes; HOST is 127.0.0.1 unless given. "
        "There is no password: whoever can connect can read. Port 0 takes a free one",
    )
    parser.add_argument(
        "--openmetrics", action="store_true", help="OpenMetrics 1.0 instead of Prometheus 0.0.4"
    )


def run(args: argparse.Namespace) -> int:
    """A queue that cannot be read is there as `mpqueue_up 0`, said on stderr, and no failure."""
    from mpqueue import metrics

    if args.listen is not None and args.openmetrics:
        raise common.UsageError("--listen answers in the format asked for: leave out --openmetrics")
    if args.listen is not None:
        from mpqueue.cli import metrics_http

        metrics_http.serve(args.listen, args.paths, report=_once())
        return common.OK
    text = metrics.render(args.paths, openmetrics=args.openmetrics, report=_say)
    if args.textfile is None:
        sys.stdout.buffer.write(text.encode())  # the format is UTF-8, whatever the locale is
    else:
        common.replace_file(args.textfile, text)
    return common.OK


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: write an IPv6 address as [::1]:9100")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write 9100 or 127.0.0.1:9100")
    return host or "127.0.0.1", int(port)


def _say(queue: str, error: Exception) -> None:
    text = str(error) or type(error).__name__
    common.say(text if queue in text else f"{queue}: {text}")


def _once() -> Callable[[str, Exception], None]:
    """A report that is silent while the same queue fails in the same way as at the last time."""
    said: dict[str, str] = {}

    def report(queue: str, error: Exception) -> None:
        if said.get(queue) != str(error):
            said[queue] = str(error)
            _say(queue, error)

    return report
