"""Checks the models of this directory: correct ones must hold, broken ones must fail.

usage: run.py [--full] [MODEL ...]

Each run is spin -a, a C compiler, and the exhaustive search that they make; what is printed is
the number of states. --full adds the larger instances, which take minutes and some memory. The
broken variants say what each model can see: one that passes is a failure of the model.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CC = ["cc", "-w", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=6000"]

# model: the instance, its definitions. Instances named "break" break one thing each, on top.
HOLDS: dict[str, list[str]] = {
    "lock": ["MEMBERS=2 DEATHS=2", "NO_SLICES DEATHS=0 INCARNATIONS=3"],
    "claim": ["INCARNATIONS=2 MORTALS=1"],
    "flush": [
        "ALONE MORTALS=2 INCARNATIONS=2",
        "ALONE MORTALS=2 INCARNATIONS=2 STOPS DEATHS=0",
        "ORPHANS INCARNATIONS=1",
        "ORPHANS EIO INCARNATIONS=1",
    ],
    "cursor": ["DEATHS=2", "POWER SEQS=4 DEATHS=0"],
    "segment": ["INCARNATIONS=2 LASTGEN=2", "INCARNATIONS=2 IMPATIENT LASTGEN=2 DEATHS=0"],
    "open": ["OPENERS=2 DEATHS=2", "DEATHS=0"],
}
LARGE: dict[str, list[str]] = {
    "lock": ["INCARNATIONS=3", ""],
    "claim": ["INCARNATIONS=2 MORTALS=2", "INCARNATIONS=2", ""],
    "flush": [
        "ORPHANS EIO INCARNATIONS=2 DEATHS=0",
        "ORPHANS INCARNATIONS=2 MORTALS=2",
        "ORPHANS INCARNATIONS=2",
    ],
    "cursor": ["POWER SEQS=4", "POWER"],
    "segment": ["INCARNATIONS=2", "", "INCARNATIONS=2 IMPATIENT LASTGEN=2", "IMPATIENT"],
    "open": [""],
}
BREAKS: dict[str, list[str]] = {
    "lock": [
        "TIMEOUT",
        "PID",
        "NO_TAKEOVER",
        "TAKEOVER_STORE",
        "WAITERS NO_SLICES DEATHS=0 INCARNATIONS=3",
    ],
    "claim": [
        "IN_PLACE",
        "SELECT_FIRST",
        "PUBLISH_FIRST",
        "FIRST_TO_LAST",
        "GAP_ALIVE",
        "GAP_BLIND",
        "GAP_ORDER DEATHS=2 INCARNATIONS=2",
        "NO_RECHECK INCARNATIONS=2 DEATHS=0",
    ],
    "flush": [
        "NUMBER_LATE ALONE MORTALS=2 INCARNATIONS=2",
        "TICKET_EARLY ALONE MORTALS=2 INCARNATIONS=2",
        "DONE_FIRST ALONE MORTALS=2 INCARNATIONS=2",
        "WATERMARK_STORE ORPHANS MORTALS=2 INCARNATIONS=2",
        "WATERMARK_LATE ALONE MORTALS=2 INCARNATIONS=2",
        "OWN_PAGES ALONE MORTALS=2 INCARNATIONS=2",
        "NO_SUCCESSOR ALONE MORTALS=2 INCARNATIONS=2",
        "NO_PATIENCE ALONE MORTALS=2 INCARNATIONS=2 STOPS DEATHS=0",
        "NO_CONSUMER ORPHANS INCARNATIONS=1",
        "NO_REDIRTY ORPHANS EIO INCARNATIONS=2",
        "LATCH_FIRST_OK ORPHANS EIO INCARNATIONS=2 DEATHS=0",
    ],
    "cursor": [
        "UNTAGGED",
        "FLOOR_HANDOUT",
        "WORD_FIRST",
        "NO_REPEAT",
        "WINDOW_BY_SEQ",
        "ONE_SLOT POWER SEQS=4",
        "SLOT_RESTART POWER SEQS=4",
        "RECLAIM_NEWEST POWER SEQS=4",
        "NO_OPEN_SYNC POWER SEQS=4",
    ],
    "segment": [
        "NO_TAKEOVER",
        "PREPARED_FIRST",
        "RENAME IMPATIENT LASTGEN=2 DEATHS=0",
        "KEPT_LOAD INCARNATIONS=2",
        "EARLY_RECLAIM LASTGEN=2",
    ],
    "open": [
        "NO_GATE OPENERS=2",
        "GATE_EARLY OPENERS=2",
        "NAME_FIRST OPENERS=2",
        "BLIND_JOIN",
        "SWEPT OPENERS=2",
    ],
}


def search(model: str, definitions: str, how: str) -> tuple[int, str]:
    """States stored, and what is wrong ("" when nothing is); in a directory of its own."""
    flags = [f"-D{one}" for one in definitions.split()]
    with tempfile.TemporaryDirectory() as work:

        def call(*command: str) -> str:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
            return done.stdout

        call("spin", "-a", *flags, str(HERE / f"{model}.pml"))
        call(*CC, *how.split(), "-o", "pan", "pan.c")
        output = call("./pan", "-n", "-m400000", "-w22")
    states = re.search(r"(\d+) states, stored", output)
    errors = re.search(r"errors: (\d+)", output)
    if states is None or errors is None or "max search depth too small" in output:
        raise SystemExit(f"{model} {definitions}: the search is not complete\n{output}")
    wrong = re.search(r"pan:1: (.*?) \(at depth", output)
    if errors[1] != "0" and wrong is None:
        raise SystemExit(f"{model} {definitions}: not understood\n{output}")
    return int(states[1]), wrong[1] if wrong else ""


def main(arguments: list[str]) -> int:
    """Prints a line for each run; 1 when one is not as it must be."""
    full = "--full" in arguments
    models = [one for one in arguments if not one.startswith("-")] or list(HOLDS)
    holding = "-O1 -DCOLLAPSE" if full else "-O1"
    total = runs = bad = 0
    for model in models:
        instances = [(one, False) for one in HOLDS[model] + (LARGE[model] if full else [])]
        instances += [(f"BREAK_{one}", True) for one in BREAKS[model]]
        for definitions, broken in instances:
            # What fails early costs more to optimise than to run.
            states, wrong = search(model, definitions, "-O0" if broken else holding)
            unexpected = bool(wrong) != broken
            total += states
            runs += 1
            bad += unexpected
            verdict = wrong or "holds"
            print(
                f"{'FAILED ' if unexpected else ''}{model} {definitions or 'as it is'}: "
                f"{states} states, {verdict}",
                flush=True,
            )
    print(f"spin: {runs} runs, {total} states, {bad} not as they must be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
