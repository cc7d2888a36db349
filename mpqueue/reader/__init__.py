"""A second, independent reader of queue directories: it looks and never touches.

Shares no code with the C core: only the bytes of the files, the published XXH64 and the tables of
`mpqueue.layout`. It opens every file read-only, takes no lock, joins nothing, and therefore works
on a read-only medium, on a dead queue and on a live one. On a live queue it shows a snapshot that
may be a few operations old.

`inspect` gives items and numbers, `verify` proves every byte that is still owed to the consumer.
"""

from __future__ import annotations

from mpqueue.reader.control import Control, Member
from mpqueue.reader.files import Cursor, Finding, Meta
from mpqueue.reader.inspect import Counts, Inspection, Record, inspect
from mpqueue.reader.verify import Report, SegmentCount, verify

__all__ = [
    "Control",
    "Counts",
    "Cursor",
    "Finding",
    "Inspection",
    "Member",
    "Meta",
    "Record",
    "Report",
    "SegmentCount",
    "inspect",
    "verify",
]
