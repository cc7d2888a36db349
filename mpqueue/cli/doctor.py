"""`mpqueue doctor`: what is wrong or could be, as sentences with advice. Joins nothing."""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpqueue._words import count
from mpqueue.cli import common
from mpqueue.reader import Inspection, Report, inspect, verify

_COLOURS = {"ok": "32", "warning": "33", "damage": "31"}
_REFUSED = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "ceph", "gluster", "afs", "lustre")


class Advice(NamedTuple):
    """One finding: level is "ok", "warning" or "damage"."""

    level: str
    topic: str
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds arguments."""
    common.add_path(parser)
    parser.add_argument("--json", action="store_true", help="the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit code 5 on damage, else 0."""
    advice = list(examine(args.path))
    damage = any(entry.level == "damage" for entry in advice)
    if args.json:
        common.print_json({"damage": damage, "findings": [entry._asdict() for entry in advice]})
    else:
        for entry in advice:
            level = common.colour(f"{entry.level:<7}", _COLOURS[entry.level])
            print(f"{level}  {entry.topic:<10}  {common.shown(entry.text)}")
    return common.DAMAGE if damage else common.OK


def examine(path: str) -> Iterator[Advice]:
    """All findings. Raises NotAQueue, FormatError, OSError."""
    report = verify(path, deep=False)
    with inspect(path) as view:
        yield from _place(view)
        yield from _semaphore(view)
        yield from _members(view)
        yield from _history(view)
        yield from _backlog(view, report)
        yield from _room(view)
        yield from _dead(view)
    yield from _files(report)


def _dead(view: Inspection) -> Iterator[Advice]:
    path = view.path / "dead"
    if not (path / "meta").exists():
        if path.exists():
            text = f"{path} is no queue and stands in the way of dead letters: move it away"
            yield Advice("warning", "dead", text)
        return
    with inspect(path) as letters:
        number = letters.counts().ready
    if number:
        text = (
            f"{count(number, 'dead letter')}: see `mpqueue dead list`; `retry` puts back, `drop` "
            "removes"
        )
        yield Advice("warning", "dead", text)
    else:
        yield Advice("ok", "dead", "no dead letters")


def _place(view: Inspection) -> Iterator[Advice]:
    kind = filesystem(view.path)
    stat = view.path.stat()
    yield Advice("ok", "path", f"{view.path}, owner {stat.st_uid}, mode {stat.st_mode & 0o777:o}")
    if kind.startswith(_REFUSED):
        text = f"{kind} has no coherent shared mappings: move the queue to a local disk"
        yield Advice("warning", "filesystem", text)
    elif kind == "tmpfs":
        text = "tmpfs lives in memory: items survive processes, but neither power loss nor reboot"
        yield Advice("warning", "filesystem", text)
    elif kind == "overlay":
        text = "overlay: liveness is weak and segments are not reused; prefer a mounted volume"
        yield Advice("warning", "filesystem", text)
    elif kind == "btrfs":
        text = "btrfs: the directory must be NOCOW (chattr +C before the queue is made)"
        yield Advice("warning", "filesystem", text)
    else:
        yield Advice("ok", "filesystem", f"{kind} is local: shared mappings and flushes are real")
    holes = [
        file.name
        for file in sorted(view.path.glob("segment-*"))
        if file.stat().st_blocks * 512 < file.stat().st_size
    ]
    if holes:
        text = (
            f"{count(len(holes), 'segment', 'are')} not fully allocated: a full disk can fail a "
            "put late"
        )
        yield Advice("warning", "space", text)
    else:
        yield Advice("ok", "space", "segments are wholly allocated: a full disk refuses a new one")


def filesystem(path: Path) -> str:
    """Type of the filesystem that holds `path`, "unknown" when the kernel does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    best, kind = -1, "unknown"
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields = left.split()
        point = fields[4].replace("\\040", " ")
        inside = point == "/" or f"{path}/".startswith(point + "/")
        # Subvolumes and overlays have devices of their own, so the longest mount point decides.
        score = len(point) + (1 << 16) * (fields[2] == wanted)
        if inside and score > best:
            best, kind = score, right.split()[0]
    return kind


def _semaphore(view: Inspection) -> Iterator[Advice]:
    from mpqueue import semaphore

    found = semaphore.inspect(f"/mpq-{view.meta.uuid}")
    control = view.source.control
    theirs = (0, 0)
    if control is not None and any(member.alive for member in view.members):
        theirs = (control.values["gate_device"], control.values["gate_inode"])
    if found is None:
        text = (
            "none here: it is made at the next open; if processes run in containers, let them "
            "share /dev/shm, else their waits for the header lock take longer"
        )
        yield Advice("ok" if not view.members else "warning", "semaphore", text)
    elif found.uid not in (-1, view.path.stat().st_uid):
        text = f"{found.name} belongs to user {found.uid}, not to the owner of the queue"
        yield Advice("warning", "semaphore", text + ": remove it, it is made again")
    elif 0 not in (*theirs, *found.identity) and theirs != found.identity:
        text = (
            f"{found.name} is not the one here that the attached processes use, so waits for the "
            "header lock may last a slice (up to 64 ms) longer: mount the same /dev/shm in every "
            "container, or start them in one IPC namespace (--ipc=container:NAME); where the "
            "semaphore was removed, close the queue in every process and open it again"
        )
        yield Advice("warning", "semaphore", text)
    else:
        yield Advice("ok", "semaphore", f"{found.name} is present")


def _members(view: Inspection) -> Iterator[Advice]:
    members = view.members
    living = [member for member in members if member.alive]
    most = int(view.options["max_members"])
    if len(living) >= most:
        text = (
            f"{count(most, 'handle')} or more are attached: the table of {most} is full, those "
            "beyond it work, but cannot be told apart or counted; max_members is fixed when a "
            "queue is made"
        )
        yield Advice("warning", "members", text)
    else:
        gone = len(members) - len(living)
        text = f"{count(len(living), 'handle')} attached, {gone} left or died, room for {most}"
        yield Advice("ok", "members", text)
    if any(member.weak for member in living):
        text = "weak: lock bytes are held by descriptors, so segment files are not reused in place"
        yield Advice("warning", "liveness", text)
    else:
        yield Advice("ok", "liveness", "strong: death of a process is the kernel's word")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 256:
        text = f"only {soft} open files are allowed: raise the limit (ulimit -n) to 1,024"
        yield Advice("warning", "limits", text)
    else:
        yield Advice("ok", "limits", f"{soft} open files are allowed")


def _history(view: Inspection) -> Iterator[Advice]:
    counters = view.counters
    lost, torn = counters.get("lost_items", 0), counters.get("torn_items", 0)
    if lost:
        size = common.human_bytes(counters.get("lost_bytes", 0))
        items = count(lost, "item", "were")
        text = f"{items} lost to damage so far ({size}): check the disk, see corrupt/"
        yield Advice("warning", "losses", text)
    else:
        yield Advice("ok", "losses", "no item was ever lost to damage")
    if torn:
        text = f"{count(torn, 'item', 'were')} cut off by a crash and not durable yet"
        yield Advice("warning", "losses", text)
    control = view.source.control
    if control is None:
        reason = view.control.reason if view.control is not None else "control is missing"
        text = f"the next open will recover: {reason}"
        yield Advice("ok", "recovery", text)
    elif control.values["recoveries"]:
        most = control.values["recovered_at_most"]
        text = f"the last open after a crash may have lost at most {count(most, 'unsynced item')}"
        yield Advice("warning" if most else "ok", "recovery", text)
    else:
        yield Advice("ok", "recovery", "no recovery was needed since control was built")
    if control is not None and control.values["fault"]:
        text = "a process met a broken promise of the kernel or a bug: see its log, then restart"
        yield Advice("damage", "fault", text)


def _backlog(view: Inspection, report: Report) -> Iterator[Advice]:
    counts = report.counts
    items = count(counts.depth, "item", "are")
    text = f"{items} owed, {common.human_bytes(counts.backlog_bytes)}"
    capacity = view.options["capacity"]
    most = view.options["max_bytes"]
    if (capacity and counts.depth >= 0.8 * capacity) or (
        most and counts.backlog_bytes >= 0.8 * most
    ):
        yield Advice("warning", "backlog", text + ": the queue is nearly full")
    else:
        oldest = next(view.items(), None) if counts.ready else None
        if oldest is not None:
            age = common.human_time(max(0.0, time.time() - oldest.enqueued_at))
            text += f"; the oldest is {age} old"
        yield Advice("ok", "backlog", text)
    if view.meta.sealed:
        yield Advice("ok", "sealed", "no more puts; `mpqueue seal --undo` lifts it")
    consumers = [member for member in view.members if member.alive and member.role == "consumer"]
    if counts.ready and not consumers:
        text = "no consumer is attached: items wait, and their disk space with them"
        yield Advice("warning", "consumer", text)
    for consumer in consumers:
        yield Advice("ok", "consumer", f"process {consumer.pid} ({consumer.command}) consumes")
    control = view.source.control
    blocked = control.values["blocked_on_claim"] if control is not None else 0
    if blocked:
        owner = next((m for m in view.members if m.incarnation == blocked and m.alive), None)
        if owner is not None:
            text = (
                f"the consumer waits for process {owner.pid} ({owner.command}), which stands "
                f"inside a put (state {_process_state(owner.pid)}): let it go on, or end it"
            )
            yield Advice("warning", "blocked", text)
    if control is not None and control.values["blocked_on_window"]:
        text = "items wait for an old one that is not acked: ack or nack it, or raise ack_window"
        yield Advice("warning", "blocked", text)


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "unknown"


def _room(view: Inspection) -> Iterator[Advice]:
    options = view.options
    used = sum(file.stat().st_size for file in view.path.glob("segment-*"))
    growth = max(0, options["segment_size"] * options["max_segments"] - used)
    others = (view.path / name for name in ("meta", "control", "cursor", "keys"))
    used += sum(file.stat().st_size for file in others if file.exists())
    disk = os.statvfs(view.path)
    free = disk.f_bavail * disk.f_frsize
    text = (
        f"{common.human_bytes(free)} free, the queue uses {common.human_bytes(used)} and may grow "
        f"by {common.human_bytes(growth)}"
    )
    if free < growth:
        text += ": free some space or lower max_segments; a full disk refuses puts cleanly"
    yield Advice("warning" if free < growth else "ok", "disk", text)


def _files(report: Report) -> Iterator[Advice]:
    shown = [finding for finding in report.findings if finding.severity != "note"]
    for finding in shown[:10]:
        level = "damage" if finding.severity == "error" else "warning"
        yield Advice(level, "files", f"{finding.file}: {finding.message}")
    if len(shown) > 10:
        more = count(len(shown) - 10, "more finding")
        yield Advice("warning", "files", f"{more}: see `mpqueue verify`")
    if not shown:
        text = "every header is whole; `mpqueue verify --deep` hashes the bodies too"
        yield Advice("ok", "files", text)
