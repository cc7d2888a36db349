"""The program: `mpqueue VERB`, also `python -m mpqueue VERB`.

Importing it takes SIGINT and SIGTERM over for the whole process, before anything slow is imported:
until a verb runs, and after it has ended, they end the program at once and in silence. So nothing
but the program imports it.
"""

from __future__ import annotations

import _signal  # what `signal` is made of; that one imports more before it can be used
import os
import sys


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)


for _number in (_signal.SIGINT, _signal.SIGTERM):
    if _signal.getsignal(_number) != _signal.SIG_IGN:  # a background job's: so it stays
        _signal.signal(_number, _leave)


def main() -> int:
    """Runs the command line and returns its exit code."""
    _open_missing()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths and bodies may hold anything
    from mpqueue import cli

    return cli.main()


def _open_missing() -> None:
    """Takes the places of standard streams that are closed, so that no other file gets them.

    Reading or writing such a stream fails with EBADF, as it should; talk on stderr goes nowhere.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)


if __name__ == "__main__":
    sys.exit(main())
