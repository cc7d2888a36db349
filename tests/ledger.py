"""Keeps the table of long runs in docs/reliability.md.

Usage: python tests/ledger.py COMMAND...   runs an instrument and appends a row about it
       python tests/ledger.py              prints the sums of all rows, by instrument

An instrument's last line says its name, seed, count and outcome; that is what a row holds, with the
core's tree id (`git rev-parse COMMIT:mpqueue/native`), which also names the core of commits that
were rebased, and the day. A tree with changes that are not committed is refused.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
CORE = "mpqueue/native"
LINE = re.compile(
    r"^(?P<name>power|powercut|steps|nth|rot|storm|fuzz|soak): .*violations|^\w+: .*FAILED"
)
COUNT = re.compile(
    r"(\d+) ([a-z0-9 -]*crash points|crash states|deaths|kills|runs|bits flipped|inputs|items)\b",
    re.ASCII,
)
SEEDS = re.compile(r"\bseeds? (\d+(?:\.\.\d+)?)")
ROW = re.compile(r"^\| (\w+) \| ([\d,]+) ([a-z0-9 -]+) \|.*\| ([\d,]+|some) \|$", re.MULTILINE)


def git(*words: str) -> str:
    """What git says."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    done.check_returncode()
    return done.stdout.strip()


def row(output: str, failed: bool) -> str:
    """The row about a run that printed `output`."""
    line = next(line for line in reversed(output.splitlines()) if LINE.search(line))
    count = COUNT.search(line)
    seeds = SEEDS.search(line)
    if count is None:
        raise SystemExit(f"no count in: {line}")
    cells = (
        line.partition(":")[0],
        f"{int(count[1]):,} {count[2]}",
        seeds[1] if seeds else "-",
        git("rev-parse", "--short=10", f"HEAD:{CORE}"),
        time.strftime("%Y-%m-%d", time.gmtime()),
        "some" if failed else "0",
    )
    return f"| {' | '.join(cells)} |\n"


def run(command: list[str]) -> int:
    """Runs it, shows what it prints, appends its row."""
    if git("status", "--porcelain", "--", CORE):
        raise SystemExit(f"{CORE} has changes that are not committed")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    failed = process.wait() != 0
    text = PAGE.read_text()
    PAGE.write_text(text + row("".join(lines), failed))
    return 1 if failed else 0


def sums() -> int:
    """Prints the cumulative counts."""
    totals: Counter[tuple[str, str]] = Counter()
    for name, count, unit, _ in ROW.findall(PAGE.read_text()):
        totals[name, unit] += int(count.replace(",", ""))
    for (name, unit), count in sorted(totals.items()):
        print(f"{name}: {count:,} {unit}")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]) if len(sys.argv) > 1 else sums())
