"""Goal: no power cut, kill, failing call or flipped bit breaks a promise.

Method: the C instruments beside this file are built with make and run; each checks every state
itself and prints how many there were, which is compared with the counts below. A failure shows the
instrument's own replay line, to be run with the programs that `make -C tests/crash` builds.

MPQ_PROOF=1 asks for the counts that the project publishes (minutes; `.ci/run proof`), otherwise
there are few of each. Without a C compiler, or where the kernel forbids ptrace, these tests are
skipped; with MPQ_PROOF=1 that is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROOF = os.environ.get("MPQ_PROOF") == "1"
POWER_SEEDS, POWER_STATES = (2_100, 50_000) if PROOF else (60, 1_000)  # 20 states a seed and
# the crashes inside their recoveries
APART, DEATHS = (7, 150_000) if PROOF else (700, 1_500)  # instructions
KILLS_A_PATH, KILLS = (60, 1_200) if PROOF else (4, 60)
NTH, FAILURES = ((), 3_000) if PROOF else (("msync",), 20)
ROT_APART, FLIPS, HARMS = (36, 160_000, 450) if PROOF else (8_000, 10_000, 50)  # bits

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1800)]


def _cannot(reason: str) -> None:
    if PROOF:
        pytest.fail(f"MPQ_PROOF=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the built instruments."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        _cannot("there is no C compiler with make")
    build = tmp_path_factory.mktemp("instruments")
    done = subprocess.run(
        ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(HERE), f"BUILD={build}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return build


def _start(program: Path, *arguments: object, scratch: Path) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if not os.access("/dev/shm", os.W_OK):
        environment["MPQ_CRASH_DIR"] = str(scratch)
    return subprocess.Popen(
        [str(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    if "ptrace is not permitted" in err:
        _cannot("ptrace is not permitted here")
    assert process.returncode == 0, out[-3000:] + err[-3000:]
    print(out, end="")
    return out


def _count(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found.group(1))


def test_power_cuts_take_nothing_that_was_promised(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "power", 1, POWER_SEEDS, 20, scratch=tmp_path))
    assert _count(r"(\d+) crash states", out) >= POWER_STATES
    assert _count(r"(\d+) dead letters", out) > 0
    assert _count(r"(\d+) of them beside their items", out) > 0


def test_a_death_at_any_instruction_stops_nobody(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "steps", 1, APART, "copies", scratch=tmp_path))
    total = out.splitlines()[-1]
    assert _count(r"(\d+) deaths", total) >= DEATHS
    assert _count(r"(\d+) half done", total) > 0
    assert _count(r"(\d+) takeovers", total) > 0
    assert _count(r"(\d+) gaps", total) > 0


def test_a_kill_at_any_instruction_stops_nobody(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "steps", 1, 7, KILLS_A_PATH, scratch=tmp_path))
    total = out.splitlines()[-1]
    assert _count(r"(\d+) kills", total) >= KILLS
    assert _count(r"(\d+) half done", total) > 0
    assert _count(r"(\d+) takeovers", total) > 0


def test_any_failing_call_is_told_and_survived(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "nth", *NTH, scratch=tmp_path))
    assert _count(r"(\d+) runs", out) >= FAILURES


def test_a_flipped_bit_costs_one_item_at_most(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "rot", 1, ROT_APART, scratch=tmp_path))
    assert _count(r"(\d+) bits flipped", out) >= FLIPS
    assert _count(r"(\d+) other kinds of damage", out) >= HARMS


@pytest.mark.skipif(not PROOF, reason="the same under AddressSanitizer: .ci/run proof")
def test_damage_leads_to_no_stray_access(built: Path, tmp_path: Path) -> None:
    out = _finish(_start(built / "rot-asan", 2, 16_000, scratch=tmp_path))
    assert _count(r"(\d+) bits flipped", out) >= 4_000


@pytest.mark.skipif(not PROOF, reason="tests of the instruments themselves: .ci/run proof")
def test_every_seeded_bug_is_caught(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "seeded.py"), "--built", str(built), "--trust"],
        capture_output=True,
        text=True,
    )
    print(done.stdout, end="")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
