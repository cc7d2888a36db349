"""`verify`: every structure checked, every frame hashed, everything owed counted again.

Changes no byte. What it finds on a live queue is looked at twice, because a segment may be
reclaimed while it is read: only what is still owed afterwards is reported and counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpqueue import layout
from mpqueue._words import count
from mpqueue.exceptions import MpqueueError
from mpqueue.reader.acks import Acks
from mpqueue.reader.files import Finding, check_keys
from mpqueue.reader.frame import DAMAGED, GAP, LOST, TORN, Frame
from mpqueue.reader.inspect import Counts, Inspection, Tally, unsettled
from mpqueue.reader.segment import SEGMENT_NAME, list_segments, open_segment
from mpqueue.reader.walk import Walk

# What may lie in a queue directory besides segments.
_KNOWN = {"meta", "control", "cursor", "keys", "corrupt", "dead"}
_TEMPORARY = ("preparing-", "making-")
_AHEAD = (
    "it was prepared for the next items and nothing in it is owed: puts pass it, or the next open "
    "sets it aside in corrupt/ and it is made anew"
)


class SegmentCount(NamedTuple):
    """Recount of one segment; bytes are frame extents of what is owed, `size` is the file's."""

    generation: int
    size: int
    epoch: int
    items: int
    settled: int
    gaps: int
    damaged: int
    lost: int
    torn: int
    backlog_bytes: int


class Report(NamedTuple):
    """What `verify` found. `damage` is true when something that is still owed is damaged."""

    path: str
    uuid: str
    trusted: bool
    deep: bool
    findings: tuple[Finding, ...]
    counts: Counts
    segments: tuple[SegmentCount, ...]
    stated: Mapping[str, int]

    @property
    def damage(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        return {
            "path": self.path,
            "uuid": self.uuid,
            "live_control": self.trusted,
            "deep": self.deep,
            "damage": self.damage,
            "counts": self.counts._asdict(),
            "stated": dict(self.stated),
            "segments": [segment._asdict() for segment in self.segments],
            "findings": [finding._asdict() for finding in self.findings],
        }


def _dead_letters(path: Path, deep: bool) -> list[Finding]:
    """What is wrong with the queue of the dead letters, where there is one."""
    if not (path / "meta").exists():
        return []
    try:
        findings = verify(path, deep).findings
    except (MpqueueError, OSError) as error:
        return [Finding("error", "dead/meta", -1, -1, str(error))]
    return [finding._replace(file=f"dead/{finding.file}") for finding in findings]


def verify(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], deep: bool = True) -> Report:
    """Checks a queue directory and counts again what it owes.

    `deep` hashes every body; without it headers only, at the speed of the walk. Safe on a live
    queue and on a read-only copy. Raises NotAQueue, FormatError, OSError.
    """
    with Inspection(path) as inspection:
        findings = list(inspection.findings)
        findings += _dead_letters(inspection.path / "dead", deep)
        findings += _structure(inspection)
        walk = inspection.walk(deep=deep)
        tallies: dict[int, Tally] = {}
        tally = Tally(inspection.acks)
        generation = -1
        bad: list[tuple[Frame, int]] = []
        for frame in walk:
            if frame.generation != generation:
                generation = frame.generation
                tally = tallies.setdefault(generation, Tally(inspection.acks))
            owed = tally.add(frame)
            if frame.kind in (DAMAGED, LOST, TORN, GAP):
                bad.append((frame, owed))
        for summary in walk.segments:
            findings += summary.findings
        findings += _bounds(inspection, walk)
        later, moved = _later(inspection)
        findings = [finding for finding in findings if not _passed(finding, later)]
        absent = _absent(walk)
        for frame, owed in bad:
            still = unsettled(frame, later) if owed and moved else owed
            if still != owed:
                tallies[frame.generation].settle(frame, still)
            if still or not owed:
                findings += _frame_finding(frame, still, absent)
        total = Tally(inspection.acks)
        for tally in tallies.values():
            total.include(tally)
        counts = total.counts(inspection.acks.acked_above_floor())
        stated = _stated(inspection)
        if not moved:
            findings += _compare(counts, stated)
        findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.severity))
        return Report(
            path=str(inspection.path),
            uuid=inspection.meta.uuid,
            trusted=inspection.trusted,
            deep=deep,
            findings=tuple(findings),
            counts=counts,
            segments=_per_segment(walk, tallies, inspection.acks),
            stated=stated,
        )


def _frame_finding(frame: Frame, owed: int, absent: Mapping[int, int]) -> list[Finding]:
    name = layout.segment_name(frame.generation)
    last = frame.seq + frame.span - 1
    items = f"items {frame.seq} to {last} are" if frame.span > 1 else f"item {frame.seq} is"
    if frame.kind == GAP:
        if not owed:
            return []
        text = (
            "the producer of this item died or failed before it was published; it was never "
            "accepted, and the consumer will pass it"
        )
        return [Finding("note", name, frame.offset, frame.seq, text)]
    if frame.kind == DAMAGED or (frame.kind == TORN and frame.length):
        text = f"the body of item {frame.seq} ({frame.length} bytes) fails its hash"
    elif frame.kind == LOST and (first := _next_absent(frame, absent)):
        name = layout.segment_name(first)
        text = f"{items} gone with the file, which is missing"
        number = absent[first]
        if number > 1:
            text = f"{items} gone with the files: {number} from this one on are missing"
    elif frame.extent:
        text = f"{frame.extent} bytes are unreadable: {items} gone"
    else:
        text = f"{items} gone: the file is missing or short"
    if not owed:
        return [Finding("note", name, frame.offset, frame.seq, text + "; they were settled before")]
    if frame.kind == TORN:
        text += (
            f"; {count(owed, 'item', 'were')} above the durable watermark when the power went, "
            "never promised; the next open counts that as torn"
        )
        return [Finding("note", name, frame.offset, frame.seq, text)]
    text += (
        f"; {owed} lost, the consumer will report it once and go on; `mpqueue repair` settles it "
        "now and saves the bytes"
    )
    return [Finding("error", name, frame.offset, frame.seq, text)]


def _absent(walk: Walk) -> dict[int, int]:
    """Runs of segments that the walk should have met and did not: first generation to length."""
    runs: dict[int, int] = {}
    there = {summary.generation for summary in walk.segments}
    first = 0
    for generation in range(max(walk.first_generation, 1), walk.last_generation + 1):
        if generation in there:
            first = 0
            continue
        first = first or generation
        runs[first] = runs.get(first, 0) + 1
    return runs


def _next_absent(frame: Frame, absent: Mapping[int, int]) -> int:
    """The first segment that is missing where this hole begins; 0 when its files are there.

    A hole begins behind the last frame that was met, so often at the end of the file before it.
    """
    if frame.generation in absent:
        return frame.generation
    at_end = frame.generation + 1 in absent and not frame.extent
    return frame.generation + 1 if at_end else 0


def _structure(inspection: Inspection) -> list[Finding]:
    """Control, poison, and files that do not belong here."""
    findings: list[Finding] = []
    meta, control = inspection.meta, inspection.control
    if control is None:
        text = "is missing or too short; the next open rebuilds it from the other files"
        findings.append(Finding("note", "control", -1, -1, text))
    elif not control.current:
        text = f"is not used: {control.reason}; the next open rebuilds it from the other files"
        findings.append(Finding("note", "control", -1, -1, text))
    failed = meta.poison_errno
    if inspection.source.control is not None:
        failed = failed or inspection.source.control.values["poison_errno"]
    if failed:
        text = (
            f"the queue is poisoned: a flush failed with {os.strerror(failed)}; check the disk, "
            "close every process that uses the queue, then open it again to prove the bytes"
        )
        findings.append(Finding("error", "meta", -1, -1, text))
    for name in sorted(os.listdir(inspection.path)):
        if name in _KNOWN or SEGMENT_NAME.fullmatch(name) or name.startswith(_TEMPORARY):
            continue
        findings.append(Finding("note", name, -1, -1, "is no file of the queue; it is left alone"))
    saved = _saved(inspection.path / "corrupt")
    if saved:
        text = f"holds {saved} saved extents of damaged bytes; delete them when looked at"
        findings.append(Finding("note", "corrupt", -1, -1, text))
    return findings


def _saved(path: Path) -> int:
    try:
        return len(os.listdir(path))
    except OSError:
        return 0


def _bounds(inspection: Inspection, walk: Walk) -> list[Finding]:
    """Marks, keys, and headers of files beside the walk."""
    meta = inspection.meta
    findings = check_keys(inspection.path, meta)
    walked = {summary.generation for summary in walk.segments}
    for generation, name in list_segments(inspection.path).items():
        if generation in walked:
            continue
        segment = open_segment(inspection.path, generation, meta)
        ahead = walk.tail_generation is not None and generation > walk.tail_generation
        if segment is None:
            if os.path.lexists(inspection.path / name):
                text = "is no regular file; " + (_AHEAD if ahead else "it counts as missing")
                findings.append(Finding("warning", name, -1, -1, text))
            continue
        if ahead and not segment.as_made:
            text = "is not as it was made (cut short, or overwritten); " + _AHEAD
            findings.append(Finding("warning", name, -1, -1, text))
        elif not segment.valid:
            text = "has no valid static header; nothing in it is owed"
            findings.append(Finding("note", name, -1, -1, text))
        segment.close()
    control = inspection.source.control
    if control is not None and control.tail["next_seq"] > meta.seq_mark:
        # Meta is raised ahead of the tail, and was read before control.
        marks = inspection.__class__(inspection.path)
        with marks:
            if control.tail["next_seq"] > marks.meta.seq_mark:
                text = f"seq mark {marks.meta.seq_mark} is below the tail"
                findings.append(Finding("error", "meta", -1, control.tail["next_seq"], text))
    if inspection.acks.floor > walk.next_seq:
        text = f"the floor lies beyond the end of data ({walk.next_seq})"
        findings.append(Finding("error", "cursor", -1, inspection.acks.floor, text))
    return findings


def _per_segment(walk: Walk, tallies: Mapping[int, Tally], acks: Acks) -> tuple[SegmentCount, ...]:
    sizes = {summary.generation: summary.size for summary in walk.segments}
    result = []
    for generation in sorted(sizes.keys() | tallies.keys()):
        tally = tallies.get(generation, Tally(acks))
        counts = tally.counts(tally.settled)
        result.append(
            SegmentCount(
                generation=generation,
                size=sizes.get(generation, 0),
                epoch=tally.epoch,
                items=counts.ready + counts.claimed,
                settled=counts.settled,
                gaps=counts.gaps,
                damaged=counts.damaged,
                lost=counts.lost,
                torn=counts.torn,
                backlog_bytes=counts.backlog_bytes,
            )
        )
    return tuple(result)


def _later(inspection: Inspection) -> tuple[Acks, bool]:
    """What is settled now, and whether the queue moved during the walk."""
    if inspection.source.control is None:
        return inspection.acks, False
    with Inspection(inspection.path) as later:
        before, after = inspection.source.control, later.source.control
        moved = (
            after is None
            or before.tail != after.tail
            or before.consumer != after.consumer
            or before.totals != after.totals
        )
        return later.acks, moved


def _passed(finding: Finding, later: Acks) -> bool:
    """Whether it speaks of a segment that the floor has passed by now."""
    match = SEGMENT_NAME.fullmatch(finding.file)
    return match is not None and int(match[1]) < layout.position_parts(later.floor_position)[0]


def _stated(inspection: Inspection) -> dict[str, int]:
    """Depth and bytes as control's totals have them; empty where control is not believed."""
    control = inspection.source.control
    if control is None:
        return {}
    return {
        "depth": max(0, control.tail["items"] - control.totals["settled_items"]),
        "backlog_bytes": max(0, control.tail["bytes"] - control.totals["settled_bytes"]),
    }


def _compare(counts: Counts, stated: Mapping[str, int]) -> list[Finding]:
    """Items that control owes and no file holds are lost, whatever the walk could say of them."""
    findings: list[Finding] = []
    if counts.lost:
        return findings
    for name, value in stated.items():
        counted = getattr(counts, name)
        if counted != value:
            text = f"{name} is stated as {value}, the frames count {counted}"
            severity = "warning"
            if name == "depth" and counted < value:
                severity = "error"
                text += f": {count(value - counted, 'item', 'are')} owed and in no file"
            findings.append(Finding(severity, "control", -1, -1, text))
    return findings
