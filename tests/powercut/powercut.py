"""Power cuts on real filesystems: records workloads, cuts them at many points, checks each image.

    python -P tests/powercut/powercut.py --points 3000
    python -P tests/powercut/powercut.py --filesystems xfs,btrfs --points 5000
    python -P tests/powercut/powercut.py --replay DIRECTORY --point N

Needs root, /dev/fuse, loop devices and a C compiler; mpqueue must be importable, because its
independent reader verifies a part of the images. Everything happens in memory and in mount
namespaces of its own. Exit status: 0 all points held, 1 one did not or the instrument failed, 3
this machine cannot run it (the reason is the last line). powercut.md says how it works.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpqueue.reader import verify

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "mpqueue" / "native"

IMAGES = {
    "ext4": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0"]),
    "ext4-4k": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0", "-b", "4096"]),
    "ext4-writeback": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0"]),
    "ext4-journal": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0"]),
    "xfs": (300, ["mkfs.xfs", "-q", "-f"]),
    "btrfs": (128, ["mkfs.btrfs", "-q", "-f"]),
}
"""Kind of filesystem: MiB, and the command that makes it in a file."""

DEFAULT = ["ext4", "ext4-4k", "ext4-writeback", "ext4-journal"]
POLICIES = ["group", "sync", "interval", "none"]
BITES = ["pending", "torn", "unpromised", "again", "acks", "verified", "fscked"]
"""What must have happened at least once in a run of some size: else it proves little."""

VERIFIER = [sys.executable, "-P", str(Path(__file__).resolve()), "--verifier"]


class Missing(Exception):
    """This machine cannot run the instrument."""


class Failed(Exception):
    """A point did not hold, or the instrument failed; the text says which."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; see the module."""
    args = _parse(arguments)
    if args.verifier:
        return _verifier()
    work = Path(tempfile.mkdtemp(prefix="powercut-", dir=_memory()))
    try:
        _need(args.filesystems)
        program = _build(work, args.native)
        if args.replay is not None:
            return _replay(program, work, args)
        return _run(program, work, args)
    except Missing as reason:
        print(f"powercut: not possible here: {reason}")
        return 3
    except Failed as failure:
        print(f"powercut: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=3000, help="crash points, recuts not counted")
    parser.add_argument("--per-recording", type=int, default=200)
    parser.add_argument("--lanes", type=int, default=2, help="recordings at a time")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--filesystems", type=lambda s: s.split(","), default=DEFAULT)
    parser.add_argument("--policies", type=lambda s: s.split(","), default=POLICIES)
    parser.add_argument("--verify-every", type=int, default=10, help="points; 0: never")
    parser.add_argument("--native", type=Path, default=NATIVE, help="the core's sources")
    parser.add_argument("--keep", type=Path, default=None, help="where a failed recording goes")
    parser.add_argument("--replay", type=Path, default=None, help="a kept recording")
    parser.add_argument("--point", type=int, default=0)
    parser.add_argument("--verifier", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    for kind in args.filesystems:
        if kind not in IMAGES:
            parser.error(f"no such filesystem: {kind}; there are {', '.join(IMAGES)}")
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(4), "little")
    return args


# ---- the machine


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _need(kinds: list[str]) -> None:
    if os.geteuid() != 0:
        raise Missing("this needs root")
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            raise Missing(f"there is no {device}")
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for tool in ["cc", "make", "losetup", *{IMAGES[kind][1][0] for kind in kinds}]:
        if shutil.which(tool) is None:
            raise Missing(f"there is no {tool}")


def _build(work: Path, native: Path) -> Path:
    build = work / "build"
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(HERE), f"NATIVE={native.resolve()}", f"BUILD={build}"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Failed(f"the instrument does not compile:\n{done.stderr}")
    return build / "powercut"


def _image(lane: Path, kind: str) -> Path:
    image = lane / f"{kind}.img"
    if not image.exists():
        megabytes, command = IMAGES[kind]
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        done = subprocess.run([*command, str(image)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr}")
    return image


# ---- one recording


def _verdict(path: str) -> str:
    """What `mpqueue verify --deep` would say, on one line. It does not believe control here: the
    session that wrote it ran under a boot id of its own."""
    try:
        report = verify(path, deep=True)
    except Exception as error:  # the point is to blame, whatever it is
        return f"verify raised {error!r}"
    bad = [
        f"{found.file}: {found.message}" for found in report.findings if found.severity != "note"
    ]
    if report.damage or bad:
        return "verify: " + "; ".join(bad or ["damage"])
    return "clean"


def _verifier() -> int:
    for line in sys.stdin:
        print(_verdict(line.strip()), flush=True)
    return 0


def _ran(command: list[str]) -> tuple[int, list[str]]:
    """The program's status, and what it said but for the name of its loop device."""
    loop = None
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("loop "):
                loop = line.split()[1]
            else:
                said.append(line.strip())
    if process.returncode < 0 and loop is not None:  # it could not clean up itself
        subprocess.run(["losetup", "-d", loop], capture_output=True)
    return process.returncode, said


def _figures(line: str) -> Counter[str]:
    figures: Counter[str] = Counter()
    for word in line.split()[1:]:
        name, value = word.split("=")
        figures[name] += int(value)
    return figures


def _recording(program: Path, lane: Path, args: argparse.Namespace, plan: _Plan) -> Counter[str]:
    """Records and checks one; its figures. Raises Failed or Missing."""
    lane.mkdir(exist_ok=True)
    image = _image(lane, plan.kind)
    words = [image, plan.kind, plan.policy, plan.seed, plan.points, lane, args.verify_every]
    status, said = _ran([str(program), "run", *map(str, words), *VERIFIER])
    last = said[-1] if said else ""
    if status == 3:
        raise Missing(last)
    if last.startswith("FAILED "):
        keep = args.keep or Path(tempfile.mkdtemp(prefix="powercut-failed-"))
        keep.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--sparse=always", image, keep / "image"], check=True)
        shutil.copy(lane / "recording", keep / "recording")
        point = last.partition(" point ")[2].split()[0]
        raise Failed(f"{last}\nreplay: python -P {sys.argv[0]} --replay {keep} --point {point}")
    if status != 0 or not last.startswith("done "):
        raise Failed(f"recording of {plan} ended with status {status}: {last}")
    figures = _figures(last)
    print(
        f"{plan.kind:15} {plan.policy:8} seed {plan.seed}: {figures['items']} items, "
        f"{figures['flushes']} flushes; {figures['points']}+{figures['again']} images in "
        f"{figures['checked_ms'] / 1000:.1f} s",
        flush=True,
    )
    return figures


class _Plan(NamedTuple):
    kind: str
    policy: str
    seed: int
    points: int


def _plans(args: argparse.Namespace) -> Iterator[_Plan]:
    """Every pair of filesystem and policy comes once in a round."""
    left, kinds, policies = args.points, args.filesystems, args.policies
    number = 0
    while left > 0:
        policy = policies[(number + number // len(kinds)) % len(policies)]
        count = min(left, args.per_recording)
        yield _Plan(kinds[number % len(kinds)], policy, args.seed + number, count)
        left -= count
        number += 1


# ---- the whole


def _run(program: Path, work: Path, args: argparse.Namespace) -> int:
    print(f"powercut: seed {args.seed}, {args.points} points, {', '.join(args.filesystems)}")
    plans, total = list(_plans(args)), Counter[str]()
    started = time.monotonic()
    waiting, lock = iter(plans), threading.Lock()
    broken: list[BaseException] = []

    def work_off(lane: Path) -> None:
        while True:
            with lock:
                plan = None if broken else next(waiting, None)
            if plan is None:
                return
            try:
                figures = _recording(program, lane, args, plan)
            except BaseException as error:
                broken.append(error)
                return
            with lock:
                total.update(figures)

    lanes = [
        threading.Thread(target=work_off, args=(work / f"lane{number}",))
        for number in range(args.lanes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if not isinstance(broken[0] if broken else None, Missing):
        _summarise(total, args, time.monotonic() - started)
        print(
            f"powercut: seed {args.seed}, {total['points']} {' and '.join(args.filesystems)} "
            f"crash points, {'FAILED' if broken else '0 violations'}",
            flush=True,
        )
    if broken:
        raise broken[0]
    dull = [name for name in BITES if total[name] == 0]
    if args.points >= 1000 and dull:
        raise Failed(f"the run proves little: no point had any {', '.join(dull)}")
    return 0


def _summarise(total: Counter[str], args: argparse.Namespace, seconds: float) -> None:
    images = total["points"] + total["again"]
    short = "" if total["points"] == args.points else f"ONLY {total['points']} of "
    print(
        f"powercut: seed {args.seed}: {short}{args.points} crash points and {total['again']} cuts "
        f"inside recovery in {seconds:.0f} s ({images / max(seconds, 0.001):.0f} images/s)\n"
        f"  of them {total['pending']} with pending writes, {total['kept']} kept some whole, "
        f"{total['torn']} tore some; {total['unpromised']} showed items not yet promised, "
        f"{total['withdrawn']} withdrew items of interval or none, {total['absent']} before the "
        f"queue existed\n"
        f"  {total['verified']} verified by the independent reader, {total['fscked']} filesystems "
        f"checked; recorded: {total['items']} items, {total['acks']} durable acks, "
        f"{total['flushes']} flushes",
        flush=True,
    )


def _replay(program: Path, work: Path, args: argparse.Namespace) -> int:
    kept = args.replay
    words = [str(kept / "image"), str(kept / "recording"), str(args.point), str(work)]
    status, said = _ran([str(program), "replay", *words, *VERIFIER])
    for cut in sorted(work.glob("cut-*.img")):
        subprocess.run(["cp", "--sparse=always", str(cut), str(kept / cut.name)], check=True)
        print(f"the disk when the power came back: {kept / cut.name}")
    print("\n".join(said))
    return status


if __name__ == "__main__":
    sys.exit(main())
