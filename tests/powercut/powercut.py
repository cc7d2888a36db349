"""Power cuts on real filesystems: records workloads, cuts them at many points, checks each image.

    python -P tests/powercut/powercut.py --points 3000
    python -P tests/powercut/powercut.py --filesystems xfs,btrfs --points 5000
    python -P tests/powercut/powercut.py --replay DIRECTORY --point N

Needs root, /dev/fuse, loop devices and a C compiler; mpqueue itself must be importable, because its
independent reader verifies a part of the images. Everything happens in a mount namespace of its
own and in memory. Exit status: 0 all points held, 1 one did not, 2 the instrument failed, 3 this
machine cannot run it (the reason is the last line). powercut.md says how it works.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mpqueue.reader import verify

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "mpqueue" / "native"

IMAGES = {
    "ext4": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0"]),
    "ext4-4k": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0", "-b", "4096"]),
    "ext4-writeback": (48, ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0"]),
    "ext4-nojournal": (
        48,
        ["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0", "-O", "^has_journal"],
    ),
    "xfs": (300, ["mkfs.xfs", "-q", "-f"]),
    "btrfs": (128, ["mkfs.btrfs", "-q", "-f"]),
}
"""Kind of filesystem: MiB, and the command that makes it in a file."""

DEFAULT = ["ext4", "ext4-4k", "ext4-writeback", "ext4-nojournal"]
POLICIES = ["group", "sync", "interval", "none"]
BITES = ["pending", "torn", "unpromised", "again", "acks", "verified", "fscked"]
"""What must have happened at least once in a run of some size: else it proves little."""

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000


class Missing(Exception):
    """This machine cannot run the instrument."""


class Failed(Exception):
    """A point did not hold, or the instrument failed; the text says which."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; see the module."""
    args = _parse(arguments)
    work = Path(tempfile.mkdtemp(prefix="powercut-", dir=_memory()))
    try:
        _need(args.filesystems)
        _own_mounts()
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
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--filesystems", type=lambda s: s.split(","), default=DEFAULT)
    parser.add_argument("--policies", type=lambda s: s.split(","), default=POLICIES)
    parser.add_argument("--verify-every", type=int, default=10, help="points; 0: never")
    parser.add_argument("--native", type=Path, default=NATIVE, help="the core's sources")
    parser.add_argument("--keep", type=Path, default=None, help="where a failed recording goes")
    parser.add_argument("--replay", type=Path, default=None, help="a kept recording")
    parser.add_argument("--point", type=int, default=0)
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


def _own_mounts() -> None:
    """Whatever is mounted from here on is gone when the last process of this run has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"", b"/", None, _MS_REC_PRIVATE, None) != 0:
        raise Missing(f"no mount namespace: {os.strerror(ctypes.get_errno())}")


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


def _image(work: Path, kind: str) -> Path:
    image = work / f"{kind}.img"
    if not image.exists():
        megabytes, command = IMAGES[kind]
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        done = subprocess.run([*command, str(image)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr}")
    return image


# ---- one recording


def _answer(path: str, boot: str) -> str:
    """What `mpqueue verify --deep` would say, on one line."""
    os.environ["MPQ_BOOT_ID"] = boot
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


def _talk(command: list[str]) -> tuple[int, list[str]]:
    """Runs the program, answers its questions; its status and what else it said."""
    said: list[str] = []
    loop = None
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            for line in process.stdout:
                words = line.split()
                if words[:1] == ["verify"]:
                    process.stdin.write(_answer(words[1], words[2]) + "\n")
                    process.stdin.flush()
                elif words[:1] == ["loop"]:
                    loop = words[1]
                else:
                    said.append(line.strip())
        except BaseException:
            process.terminate()
            raise
        finally:
            process.wait()
            if process.returncode < 0 and loop is not None:  # it could not clean up itself
                subprocess.run(["losetup", "-d", loop], capture_output=True)
    return process.returncode, said


def _figures(line: str) -> Counter[str]:
    figures: Counter[str] = Counter()
    for word in line.split()[1:]:
        name, value = word.split("=")
        figures[name] += int(value)
    return figures


def _keep(args: argparse.Namespace, work: Path, image: Path, point: str) -> None:
    keep = args.keep or Path(tempfile.mkdtemp(prefix="powercut-failed-"))
    keep.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--sparse=always", str(image), str(keep / "image")], check=True)
    shutil.copy(work / "recording", keep / "recording")
    print(f"replay: python -P {sys.argv[0]} --replay {keep} --point {point}")


def _plan(args: argparse.Namespace) -> Iterator[tuple[str, str, int, int]]:
    """Kind, policy, seed and points of each recording: every pair comes once in a round."""
    left, kinds, policies = args.points, args.filesystems, args.policies
    number = 0
    while left > 0:
        policy = policies[(number + number // len(kinds)) % len(policies)]
        count = min(left, args.per_recording)
        yield kinds[number % len(kinds)], policy, args.seed + number, count
        left -= count
        number += 1


def _run(program: Path, work: Path, args: argparse.Namespace) -> int:
    print(f"powercut: seed {args.seed}, {args.points} points, {', '.join(args.filesystems)}")
    total: Counter[str] = Counter()
    started = time.monotonic()
    whole = False
    try:
        for kind, policy, seed, points in _plan(args):
            image = _image(work, kind)
            words = [str(image), kind, policy, str(seed), str(points), str(work)]
            status, said = _talk([str(program), "run", *words, str(args.verify_every)])
            last = said[-1] if said else ""
            if status != 0 or not last.startswith("done "):
                _give_up(status, last, kind, policy, seed, args, work, image)
            figures = _figures(last)
            total += figures
            seconds = figures["checked_ms"] / 1000
            print(
                f"{kind:15} {policy:8} seed {seed}: {figures['items']} items, "
                f"{figures['flushes']} flushes; {figures['points']}+{figures['again']} points "
                f"in {seconds:.1f} s"
            )
            sys.stdout.flush()
        whole = total["points"] == args.points
    finally:
        _summarise(total, args, time.monotonic() - started, whole)
    dull = [name for name in BITES if total[name] == 0]
    if args.points >= 1000 and dull:
        raise Failed(f"the run proves little: no point had any {', '.join(dull)}")
    return 0


def _give_up(
    status: int,
    last: str,
    kind: str,
    policy: str,
    seed: int,
    args: argparse.Namespace,
    work: Path,
    image: Path,
) -> NoReturn:
    if status == 3:
        raise Missing(last)
    if last.startswith("FAILED "):
        words = last.split()
        _keep(args, work, image, words[words.index("point") + 1])
        raise Failed(last)
    raise Failed(f"recording {kind} {policy} seed {seed} ended with status {status}: {last}")


def _summarise(total: Counter[str], args: argparse.Namespace, seconds: float, whole: bool) -> None:
    images = total["points"] + total["again"]
    amount = f"{total['points']}" if whole else f"ONLY {total['points']} of {args.points}"
    print(
        f"powercut: seed {args.seed}: {amount} crash points and {total['again']} cuts inside "
        f"recovery in {seconds:.0f} s ({images / max(seconds, 0.001):.0f} images/s)\n"
        f"  of them {total['pending']} with pending writes, {total['kept']} kept some whole, "
        f"{total['torn']} tore some; {total['unpromised']} showed items not yet promised, "
        f"{total['withdrawn']} withdrew items of interval or none, {total['absent']} before the "
        f"queue existed\n"
        f"  {total['verified']} verified by the independent reader, {total['fscked']} filesystems "
        f"checked; recorded: {total['items']} items, {total['acks']} durable acks, "
        f"{total['flushes']} flushes"
    )


def _replay(program: Path, work: Path, args: argparse.Namespace) -> int:
    kept = args.replay
    words = [str(kept / "image"), str(kept / "recording"), str(args.point), str(work)]
    status, said = _talk([str(program), "replay", *words])
    for cut in sorted(work.glob("cut-*.img")):
        subprocess.run(["cp", "--sparse=always", str(cut), str(kept / cut.name)], check=True)
        print(f"the disk when the power came back: {kept / cut.name}")
    print("\n".join(said))
    return status


if __name__ == "__main__":
    sys.exit(main())
