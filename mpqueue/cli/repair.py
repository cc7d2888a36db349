"""`mpqueue repair`: settle damage once, saving the damaged bytes in corrupt/."""

from __future__ import annotations

import argparse

from mpqueue._words import count
from mpqueue.cli import common


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--dry-run", action="store_true", help="report only, change nothing")
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Needs the queue alone. Exit code 5 when items were (or, dry, would be) given up as lost."""
    import mpqueue

    repaired = mpqueue.repair(args.path, dry_run=args.dry_run)
    report = repaired._asdict()
    lost = repaired.lost_items
    code = common.DAMAGE if lost else common.OK
    if args.json:
        common.print_json(report)
        return code
    common.table([(name.replace("_", " "), value) for name, value in report.items()])
    if lost:
        items = count(lost, "damaged item", "would be" if args.dry_run else "were")
        print(f"{common.shown(args.path)}: {items} given up; the bytes go to corrupt/")
    else:
        print(f"{common.shown(args.path)}: nothing is lost")
    return code
