"""The logger `mpqueue`, imported on its first record.

Own module so that `import mpqueue` does not pay for `logging`. Nothing is configured here beyond a
NullHandler: what the application does not ask for stays silent.
"""

from __future__ import annotations


def warn(message: str, *args: object) -> None:
    """Log a WARNING on `mpqueue`. Never called with a lock of the queue held."""
    import logging

    logger = logging.getLogger("mpqueue")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.warning(message, *args)
