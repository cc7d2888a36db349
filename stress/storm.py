"""SIGKILL storm: real producers, consumers and command lines on one queue, killed at random.

Entry point: stress/run.sh. The promise under test: a kill loses nothing that was accepted, under
any durability policy; nobody hangs; nothing is delivered altered, or twice without a cause. A lost
boot is simulated too: everybody is killed, the boot id changes (MPQ_BOOT_ID), and those who then
recover the queue are killed as well. The page cache survives, so even `none` loses nothing.

The storm of one policy loses no boots instead: a producer and a consumer live through it and must
not grow (flat.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from flat import Flatness, sample, sample_queue
from ledger import Ledger

POLICIES = ("group", "sync", "interval", "none")
STEADY = "interval"  # the policy whose storm loses no boots
SEGMENT = "64K"
RINGS = (5, 12)  # segments at most, by turns; the larger items need segments of their own
PRODUCERS = 4
CONSUMERS = 2  # one of them waits for the role
KILLS_A_BOOT = 40
BITING_KILLS = 400  # a storm of so many has to hit somebody inside the header lock
WATCH_SECONDS = 0.05
STOPPED_SECONDS = 0.2
PAUSE_SECONDS = (0.001, 0.012)  # between two cruelties
JOBS = 2  # storms at a time
META_UUID = slice(24, 40)


@dataclass(frozen=True)
class Plan:
    """What one storm is to do."""

    kills: int
    seconds: float
    seed: int
    durability: str
    watchdog: float

    @property
    def steady(self) -> bool:
        """A producer and a consumer are spared."""
        return self.durability == STEADY

    @property
    def ring(self) -> int:
        """Segments at most."""
        return RINGS[(self.seed + POLICIES.index(self.durability)) % len(RINGS)]


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
        self.counts = {"lost boots": 0, "stops": 0, "interrupts": 0, "semaphores removed": 0}
        self.counts |= {"aimed at the lock": 0, "lock takeovers": 0}
        self.stopped: tuple[Child, float] | None = None
        self.moved_at = time.monotonic()
        self.seen_bytes = 0
        self.stall_max = 0.0
        os.environ.pop("MPQ_BOOT_ID", None)
        geometry = ("--segment-size", SEGMENT, "--max-segments", plan.ring)
        self.cli("init", self.queue, *geometry, "--durability", plan.durability)
        with open(self.queue / "meta", "rb") as meta:
            self.semaphore = Path("/dev/shm/sem.mpq-" + meta.read(4096)[META_UUID].hex())
        self.flatness = {"steady-producer": Flatness("producer")}
        self.flatness["steady-consumer"] = Flatness("consumer")
        self.flatness["queue"] = Flatness("queue")

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
        role = kind.removeprefix("steady-")
        name = f"{role}-{number}"
        path = self.ledgers / name
        bodies = {
            "producer": lambda: producer.run(queue, path, number),
            "consumer": lambda: consumer.run(queue, path, number),
            "opener": lambda: mpqueue.Queue(queue, create=False).close(),
            "cli": lambda: self._put_by_cli(number, path),
        }
        return self.children.start(kind, name, bodies[role])

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
        if self.plan.steady and not self.flatness["queue"].samples:
            self._start("steady-producer")
            self._start("steady-consumer")
            self._sample()
        self._fill_up_with("producer", PRODUCERS)
        self._fill_up_with("consumer", CONSUMERS)

    def _fill_up_with(self, kind: str, wanted: int) -> None:
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

    def _interrupt_somebody(self) -> None:
        os.kill(self.choices.choice(self.children.of("producer", "consumer")).pid, signal.SIGINT)
        self.counts["interrupts"] += 1

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
        consumers = self.children.of("consumer", "steady-consumer")
        paths = [self.ledgers / child.name for child in consumers]
        seen = sum(path.stat().st_size for path in paths if path.exists())
        now = time.monotonic()
        if seen != self.seen_bytes:
            if self.stopped is None:
                self.stall_max = max(self.stall_max, now - self.moved_at)
            self.seen_bytes, self.moved_at = seen, now
        elif now - self.moved_at > self.plan.watchdog:
            raise Hang(f"nothing delivered for {self.plan.watchdog} s\n{self.children.describe()}")

    def _sample(self) -> None:
        """Of those who live through the storm, and of what lies outside of processes."""
        for child in self.children.of("steady-producer", "steady-consumer"):
            self.flatness[child.kind].add(sample(child.pid))
        self.flatness["queue"].add(sample_queue(self.queue))

    def _rage(self) -> None:
        begun = self.moved_at = time.monotonic()
        actions: dict[Callable[[], object], int] = {
            self._kill_somebody: 80,
            self._stop_somebody: 6,
            self._ask_somebody_to_end: 4,
            self._interrupt_somebody: 6,
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
            time.sleep(self.choices.uniform(*PAUSE_SECONDS))
            self._continue()
            if self.plan.steady:
                self._sample()
            elif kills // KILLS_A_BOOT > self.counts["lost boots"]:
                self._lose_the_boot()
            self.choices.choices(list(actions), list(actions.values()))[0]()

    def _drain(self) -> None:
        """No more kills: producers end, the queue is sealed, the consumers drain it and end."""
        self._continue(now=True)
        self._fill_up()
        producers = ("producer", "steady-producer")
        for child in self.children.of(*producers):
            os.kill(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.plan.watchdog
        while not self.children.wait_for((*producers, "cli", "opener"), 0.2):
            if time.monotonic() > deadline:
                raise Hang("producers did not end\n" + self.children.describe())
            # Those that lived when the rage ended may have been asked to end: a put waits for room.
            self._fill_up_with("consumer", CONSUMERS)
        self._start("consumer")  # the others may have been killed or asked to end a moment ago
        self.cli("seal", self.queue)
        if not self.children.wait_for(("consumer", "steady-consumer"), self.plan.watchdog):
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
        if self.plan.steady:
            for flatness in self.flatness.values():
                violations += flatness.complaints()
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
        if self.plan.steady:
            counts["flat"] = "; ".join(map(str, self.flatness.values()))
        counts["longest stall, s"] = round(self.stall_max, 2)
        counts["seconds"] = round(time.monotonic() - begun, 1)
        return violations, counts


def one(plan: Plan, arguments: argparse.Namespace) -> int:
    """A storm of one policy in this process."""
    directory = Path(tempfile.mkdtemp(prefix="mpqueue-storm-", dir=arguments.dir))
    violations, counts = Storm(plan, directory).run()
    print(f"storm: seed {plan.seed}, {plan.durability}, ring of {plan.ring}")
    print("  " + ", ".join(f"{name} {value}" for name, value in counts.items()))
    for text in violations[:20]:
        print(f"  VIOLATION: {text}")
    if violations:
        amount = f"--seconds {plan.seconds}" if plan.seconds else f"--kills {plan.kills}"
        print(f"  {len(violations)} violation(s); files kept in {directory}")
        print(f"  replay: stress/run.sh {amount} --seed {plan.seed} --durability {plan.durability}")
    elif not arguments.keep:
        shutil.rmtree(directory)
    return 1 if violations else 0


def several(total: int, seed: int, arguments: argparse.Namespace) -> int:
    """A storm of every policy, each in a process of its own, a few at a time."""
    share = (
        ("--seconds", str(arguments.seconds / len(POLICIES) * JOBS))
        if arguments.seconds
        else ("--kills", str(-(-total // len(POLICIES))))
    )
    shared = [*share, "--seed", str(seed), "--watchdog", str(arguments.watchdog)]
    shared += ["--dir", str(arguments.dir)] if arguments.dir else []
    shared += ["--keep"] if arguments.keep else []

    def run(policy: str) -> tuple[bool, str]:
        command = [sys.executable, "-P", __file__, *shared, "--durability", policy]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        print(done.stdout + done.stderr, end="", flush=True)
        return done.returncode != 0, done.stdout

    with ThreadPoolExecutor(JOBS) as pool:
        outcomes = list(pool.map(run, sorted(POLICIES, key=lambda name: name != STEADY)))
    failed = any(bad for bad, _ in outcomes)
    text = "".join(text for _, text in outcomes)
    kills = sum(map(int, re.findall(r"^  kills (\d+)", text, re.MULTILINE)))
    takeovers = sum(map(int, re.findall(r"lock takeovers (\d+)", text)))
    if kills < total:
        print(f"  VIOLATION: {kills} kills, not {total}")
        failed = True
    if kills >= BITING_KILLS and not failed and not takeovers:
        print("  VIOLATION: nobody was killed inside the header lock: this storm proved too little")
        failed = True
    outcome = "FAILED" if failed else "0 violations"
    print(f"storm: {kills} kills, {takeovers} lock takeovers, {outcome} (seed {seed})")
    return 1 if failed else 0


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
    total = arguments.kills or (0 if arguments.seconds else 500)
    if arguments.durability is None:
        return several(total, seed, arguments)
    watchdog = arguments.watchdog
    return one(Plan(total, arguments.seconds, seed, arguments.durability, watchdog), arguments)


if __name__ == "__main__":
    sys.exit(main())
