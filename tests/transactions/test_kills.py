"""Goal: wherever a process dies among effect, mark, commit, put and ack, each effect is there once.

Method: kills.py dies at each call that reaches a file or the database, with MPQ_PROOF=1 before and
after each call at all. There is nothing for a disk to prove, so the files lie in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import Backend

SCRIPT = Path(__file__).with_name("kills.py")
EVERY = ["every"] if os.environ.get("MPQ_PROOF") == "1" else []
# Both sides of each boundary have to have been met, else the deaths prove nothing.
STATES = {
    "inbox": {"0 done, 2 there", "1 done, 2 there", "1 done, 1 there", "2 done, 0 there"},
    "outbox": {"2 to relay, 0 there", "2 to relay, 2 there", "0 to relay, 2 there"},
    "pipeline": {
        "2 in the first, 0 in the second",
        "2 in the first, 1 in the second",
        "1 in the first, 1 in the second",
    },
}
pytestmark = pytest.mark.crash


@pytest.fixture
def memory() -> Iterator[str]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mpq-kills-", dir=place) as directory:
        yield directory


def _each_effect_once(scenario: str, directory: str, database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), scenario, directory, database, *EVERY],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    print(f"{scenario}: {found['deaths']} deaths, {found['states']}")
    assert STATES[scenario] <= set(found["states"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", ["inbox", "outbox", "pipeline"])
def test_sqlite(scenario: str, memory: str) -> None:
    _each_effect_once(scenario, memory, f"{memory}/database")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", ["inbox", "outbox"])
def test_postgres(scenario: str, memory: str, postgres: Backend) -> None:
    postgres.admin.execute("DROP TABLE effects")
    postgres.admin.commit()
    _each_effect_once(scenario, memory, postgres.place)
