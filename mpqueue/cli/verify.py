"""`mpqueue verify`: check headers, or every byte, with the independent reader; changes nothing."""

from __future__ import annotations

import argparse

from mpqueue._words import count
from mpqueue.cli import common

_COLOURS = {"error": "31", "warning": "33", "note": "36"}
_SHOWN = 50


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--deep", action="store_true", help="hash every body too")
    parser.add_argument("--json", action="store_true", help="the whole report as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit code 5 when something that is still owed is damaged."""
    from mpqueue.reader import verify

    report = verify(args.path, deep=args.deep)
    code = common.DAMAGE if report.damage else common.OK
    if args.json:
        common.print_json(report.as_dict())
        return code
    for finding in report.findings[:_SHOWN]:
        place = finding.file
        if finding.offset >= 0:
            place += f" at {finding.offset}"
        severity = common.colour(finding.severity, _COLOURS[finding.severity])
        print(f"{severity}: {place}: {common.shown(finding.message)}")
    if len(report.findings) > _SHOWN:
        print(f"... and {len(report.findings) - _SHOWN} more; --json shows all")
    counts = report.counts
    common.table(
        [
            ("owed", f"{count(counts.depth, 'item')}, {common.human_bytes(counts.backlog_bytes)}"),
            ("ready", counts.ready),
            ("being written", counts.claimed),
            ("gaps", counts.gaps),
            ("damaged", counts.damaged),
            ("lost", counts.lost),
            ("torn, never promised", counts.torn),
            ("acked above floor", counts.settled),
            ("segments", len(report.segments)),
        ]
    )
    bodies = "headers and bodies" if args.deep else "headers (--deep hashes bodies too)"
    warned = any(finding.severity == "warning" for finding in report.findings)
    verdict = "DAMAGED" if report.damage else "whole, with warnings" if warned else "whole"
    print(f"{common.shown(str(report.path))}: {verdict}; checked {bodies}")
    return code
