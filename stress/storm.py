"""SIGKILL storm: real producers, consumers and command lines on one queue, killed at random.

Entry point: stress/run.sh. The promise under test: a kill loses nothing that was accepted, under
any durability policy; nobody hangs; nothing is delivered altered, or twice without a cause. A lost
boot is simulated too: everybody is killed, the boot id changes (MPQ_BOOT_ID), and those who then
recover the queue are killed as well. The page cache survives, so even `none` loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import consumer
import mpqueue
import mpqueue._native
import oracle
import payload
import producer
from children import Child, Children
from control import Control
from ledger import Ledger

POLICIES = ("group", "sync", "interval", "none")
GEOMETRY = ("--segment-size", "64K", "--max-segments", "12")
PRODUCERS = 4
CONSUMERS = 2  # one of them waits for the role
KILLS_A_BOOT = 40
BITING_KILLS = 400  # a storm of so many has to hit somebody inside the header lock
WATCH_SECONDS = 0.05
STOPPED_SECONDS = 0.2
META_UUID = slice(24, 40)


@dataclass(frozen=True)
class Plan:
    """What one storm is to do."""

    kills: int
    seconds: float
    seed: int
    durability: str
    watchdog: float


class Hang(Exception):
    """The watchdog's verdict, with where everybody was."""


class Storm:
    """One queue, one policy, one seed."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.queue = directory / "queue"
        self.ledgers = directory / "ledgers"
        self.ledgers.mkdir(parents=True)
        self.choices = random.Random(f"{plan.seed} {plan.durability}")
        self.children = Children(directory)
        self.number = 0
        self.boots = Ledger(self.ledgers / "boots")
        self.counts = {"lost boots": 0, "stops": 0, "semaphores removed": 0}
        self.counts |= {"aimed at the lock": 0, "lock takeovers": 0}
        self.stopped: tuple[Child, float] | None = None
        self.moved_at = time.monotonic()
        self.seen_bytes = 0
        self.stall_max = 0.0
        os.environ.pop("MPQ_BOOT_ID", None)
        self.cli("init", self.queue, *GEOMETRY, "--durability", plan.durability)
        with open(self.queue / "meta", "rb") as meta:
            self.semaphore = Path("/dev/shm/sem.mpq-" + meta.read(4096)[META_UUID].hex())

    @staticmethod
    def cli(*words: object) -> str:
        """Runs the command line to its end; any failure is the storm's failure."""
        command = [sys.executable, "-P", "-m", "mpqueue", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"mpqueue {words[0]} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    # ---- who takes part ----------------------------------------------------------------------

    def _start(self, kind: str) -> Child:
        self.number += 1
        number, queue = self.number, str(self.queue)
        name = f"{kind}-{number}"
        path = self.ledgers / name
        bodies = {
            "producer": lambda: producer.run(queue, path, number),
            "consumer": lambda: consumer.run(queue, path, number),
            "opener": lambda: mpqueue.Queue(queue, create=False).close(),
            "cli": lambda: self._put_by_cli(number, path),
        }
        return self.children.start(kind, name, bodies[kind])

    def _put_by_cli(self, number: int, path: Path) -> None:
        """Becomes `timeout -s KILL ... mpqueue put` with lines on stdin."""
        choices = random.Random(number)
        lines = b"".join(payload.make(number, n) + b"\n" for n in range(choices.randint(1, 150)))
        with tempfile.TemporaryFile(dir=self.queue.parent) as source:
            source.write(lines)
            source.flush()
            os.lseek(source.fileno(), 0, os.SEEK_SET)
            os.dup2(source.fileno(), 0)
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        seconds = f"{choices.uniform(0.05, 0.6):.3f}"
        command = [sys.executable, "-P", "-m", "mpqueue", "put", str(self.queue), "--lines"]
        os.execvp("timeout", ["timeout", "-s", "KILL", seconds, *command, "--print-seq"])

    def _fill_up(self) -> None:
        """Replaces the dead."""
        for kind, wanted in (("producer", PRODUCERS), ("consumer", CONSUMERS)):
            for _ in range(wanted - len(self.children.of(kind))):
                self._start(kind)

    # ---- what happens to them ----------------------------------------------------------------

    def _kill_somebody(self) -> None:
        kind = self.choices.choices(("producer", "consumer", "opener"), (5, 3, 2))[0]
        if kind == "opener":
            self._kill_an_opener()
        else:
            self.children.kill(self.choices.choice(self.children.of(kind)))

    def _kill_a_lock_holder(self) -> None:
        """Watches the owner word for a moment and kills the producer that appears there."""
        control = Control(self.queue)
        members = control.incarnations()
        producers = {child.pid: child for child in self.children.of("producer")}
        deadline = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < deadline:
            child = producers.get(members.get(control.owner(), 0))
            if child is not None:
                self.children.kill(child)
                self.counts["aimed at the lock"] += 1
                break
        control.close()

    def _kill_an_opener(self) -> None:
        """Somebody who opens, or recovers, and dies of it a few milliseconds later."""
        child = self._start("opener")
        time.sleep(self.choices.uniform(0, 0.008))
        self.children.kill(child)

    def _ask_somebody_to_end(self) -> None:
        os.kill(self.choices.choice(self.children.of("producer", "consumer")).pid, signal.SIGTERM)

    def _stop_somebody(self) -> None:
        if self.stopped is None:
            child = self.choices.choice(self.children.of("producer", "consumer"))
            os.kill(child.pid, signal.SIGSTOP)
            self.stopped = child, time.monotonic() + STOPPED_SECONDS
            self.counts["stops"] += 1

    def _continue(self, *, now: bool = False) -> None:
        if self.stopped is not None and (now or time.monotonic() > self.stopped[1]):
            if self.stopped[0].pid in self.children.living:
                os.kill(self.stopped[0].pid, signal.SIGCONT)
            self.stopped = None
            self.moved_at = time.monotonic()

    def _remove_semaphore(self) -> None:
        self.semaphore.unlink(missing_ok=True)
        self.counts["semaphores removed"] += 1

    def _count_takeovers(self) -> None:
        """Adds those of the control file that is about to be replaced."""
        control = Control(self.queue)
        self.counts["lock takeovers"] += control.takeovers
        control.close()

    def _lose_the_boot(self) -> None:
        """All die; another boot id; some of those who recover die too; then all come back."""
        self.children.kill_all()
        self._count_takeovers()
        self.stopped = None
        self.boots.write(f"b {time.monotonic_ns()}\n")
        os.environ["MPQ_BOOT_ID"] = str(uuid.UUID(int=self.choices.getrandbits(128)))
        self.counts["lost boots"] += 1
        for _ in range(self.choices.randint(0, 3)):
            self._kill_an_opener()
            self.children.wait_for(("opener",), self.plan.watchdog)
        self._fill_up()
        self.moved_at = time.monotonic()

    # ---- is it alive -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Measures how long nothing was delivered; too long is a hang."""
        paths = [self.ledgers / child.name for child in self.children.of("consumer")]
        seen = sum(path.stat().st_size for path in paths if path.exists())
        now = time.monotonic()
        if seen != self.seen_bytes:
            if self.stopped is None:
                self.stall_max = max(self.stall_max, now - self.moved_at)
            self.seen_bytes, self.moved_at = seen, now
        elif now - self.moved_at > self.plan.watchdog:
            raise Hang(f"nothing delivered for {self.plan.watchdog} s\n{self.children.describe()}")

    def _rage(self) -> None:
        begun = time.monotonic()
        actions: dict[Callable[[], object], int] = {
            self._kill_somebody: 80,
            self._stop_somebody: 6,
            self._ask_somebody_to_end: 4,
            self._remove_semaphore: 2,
            self._kill_a_lock_holder: 50,
            lambda: self._start("cli"): 5,
        }
        while True:
            kills = sum(self.children.kills.values())
            if (self.plan.kills and kills >= self.plan.kills) or (
                self.plan.seconds and time.monotonic() - begun >= self.plan.seconds
            ):
                return
            self.children.bury()
            if self.children.complaints:
                return
            self._fill_up()
            self._watch()
            time.sleep(self.choices.uniform(0.020, 0.050))
            self._continue()
            if kills // KILLS_A_BOOT > self.counts["lost boots"]:
                self._lose_the_boot()
            self.choices.choices(list(actions), list(actions.values()))[0]()

    def _drain(self) -> None:
        """No more kills: producers end, the queue is sealed, the consumers drain it and end."""
        self._continue(now=True)
        self._fill_up()
        for child in self.children.of("producer"):
            os.kill(child.pid, signal.SIGTERM)
        if not self.children.wait_for(("producer", "cli", "opener"), self.plan.watchdog):
            raise Hang("producers did not end\n" + self.children.describe())
        self._start("consumer")  # the others may have been killed or asked to end a moment ago
        self.cli("seal", self.queue)
        if not self.children.wait_for(("consumer",), self.plan.watchdog):
            raise Hang("consumers did not drain the queue\n" + self.children.describe())

    # ---- the whole ---------------------------------------------------------------------------

    def run(self) -> tuple[list[str], dict[str, Any]]:
        """Violations, and counts for people."""
        begun = time.monotonic()
        violations: list[str] = []
        stats: dict[str, Any] = {}
        try:
            self._fill_up()
            self._rage()
            if not self.children.complaints:
                self._drain()
                self.cli("verify", self.queue, "--json")
                stats = json.loads(self.cli("stats", self.queue, "--json"))
                for name in ("depth", "lost_items", "reserved_items"):
                    if stats[name]:
                        violations.append(f"stats: {name} is {stats[name]}, expected 0")
                self._count_takeovers()
                if not violations:  # else the files are evidence
                    self.cli("destroy", self.queue, "--yes")
                    if self.semaphore.exists():
                        violations.append("destroy left the semaphore behind")
        except (Hang, RuntimeError) as error:
            violations.append(str(error))
        finally:
            self.children.kill_all()
        violations += self.children.complaints
        verdict = oracle.judge(self.ledgers, self.plan.durability)
        if stats:  # a storm that broke off has not drained: only then is "missing" not a loss
            violations += verdict.violations
        else:
            violations += [text for text in verdict.violations if not text.startswith("LOST")]
        counts: dict[str, Any] = {"kills": sum(self.children.kills.values())}
        counts.update({f"killed: {kind}": n for kind, n in sorted(self.children.kills.items())})
        counts.update(self.counts)
        counts.update(verdict.counts)
        for name in ("claim_gaps", "torn_items"):
            counts[f"stats: {name}"] = stats.get(name, "?")
        counts["longest stall, s"] = round(self.stall_max, 2)
        counts["seconds"] = round(time.monotonic() - begun, 1)
        return violations, counts


def main() -> int:
    """0 when every storm kept every promise."""
    parser = argparse.ArgumentParser(prog="stress/run.sh", description=(__doc__ or "")[:80])
    parser.add_argument("--kills", type=int, default=0, help="kills in all (default 500)")
    parser.add_argument("--seconds", type=float, default=0, help="seconds in all, instead of kills")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier storm")
    parser.add_argument("--durability", choices=POLICIES, help="only this one (default: each)")
    parser.add_argument("--watchdog", type=float, default=30.0, help="seconds that are a hang")
    parser.add_argument("--dir", type=Path, help="where to work (default: the temporary directory)")
    parser.add_argument("--keep", action="store_true", help="keep the files of a good storm too")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    policies = [arguments.durability] if arguments.durability else list(POLICIES)
    total = arguments.kills or (0 if arguments.seconds else 500)
    failed = False
    takeovers = 0
    for policy in policies:
        kills, seconds = -(-total // len(policies)), arguments.seconds / len(policies)
        directory = Path(tempfile.mkdtemp(prefix="mpqueue-storm-", dir=arguments.dir))
        plan = Plan(kills, seconds, seed, policy, arguments.watchdog)
        print(f"storm: seed {seed}, {policy}", flush=True)
        violations, counts = Storm(plan, directory).run()
        takeovers += counts["lock takeovers"]
        print("  " + ", ".join(f"{name} {value}" for name, value in counts.items()), flush=True)
        for text in violations[:20]:
            print(f"  VIOLATION: {text}")
        if violations:
            failed = True
            amount = f"--seconds {seconds}" if seconds else f"--kills {kills}"
            print(f"  {len(violations)} violation(s); files kept in {directory}")
            print(f"  replay: stress/run.sh {amount} --seed {seed} --durability {policy}")
        elif not arguments.keep:
            shutil.rmtree(directory)
    if total >= BITING_KILLS and len(policies) > 1 and not failed and not takeovers:
        failed = True
        print("  VIOLATION: nobody was killed inside the header lock: this storm proved too little")
    print("storm: " + ("FAILED" if failed else f"0 violations (seed {seed})"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
