"""The second reader on images that were built by hand: items, order, acks, damage, losses.

Method: `reader_image` lays the bytes down from the description of the format; the reader must find
what was put there, and after damage exactly what is left. No core is involved.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from mpqueue import layout
from mpqueue.exceptions import Closed, FormatError, NotAQueue
from mpqueue.reader import inspect, verify

sys.path.insert(0, str(Path(__file__).parent))
from reader_image import EPOCH, UUID, Image, flip, headers_entry

FIRST = layout.FLAG_BATCH | layout.FLAG_BATCH_FIRST
MIDDLE = layout.FLAG_BATCH
LAST = layout.FLAG_BATCH | layout.FLAG_BATCH_LAST
DEAD = (1 << 40) + 3  # an incarnation that holds no lock byte


def seqs(path: Path, **options: bool) -> list[int]:
    with inspect(path) as view:
        return [record.seq for record in view.items(**options)]


def name(generation: int = 1) -> str:
    return layout.segment_name(generation)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "spool")


def test_items_come_back_with_everything_that_was_stored(image: Image) -> None:
    segment = image.segment()
    segment.put(b"")
    segment.put(b"x" * 1000, ext=headers_entry({"kind": "mail", "n": "1"}))
    image.attempts = {2: 5}
    with inspect(image.write()) as view:
        records = list(view.items())
        assert view.options["ack_window"] == 64
        assert view.options["capacity"] is None
        assert view.options["durability"] == "group"
        assert not view.trusted
    assert [record.body for record in records] == [b"", b"x" * 1000]
    assert records[1].headers == {"kind": "mail", "n": "1"}
    assert records[1].id == f"{UUID.hex}:{EPOCH}:2"
    assert records[1].attempts == 5
    assert records[0].enqueued_at == 1_700_000_000
    assert verify(image.path).damage is False


def _open_files() -> set[str]:
    return {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


def test_an_inspection_gives_its_descriptors_back(image: Image) -> None:
    """By `with`, by close(), and when it is dropped; also when a walk is left in the middle.

    Each forgotten inspect() used to keep a descriptor of meta for ever.
    """
    segment = image.segment()
    for _ in range(3):
        segment.put(b"x")
    image.live()
    inside = str(image.write())

    def ours() -> set[str]:
        return {name for name in _open_files() if name.startswith(inside)}

    with inspect(image.path) as view:
        assert ours()
        assert len(list(view.items())) == 3
    assert not ours()
    view.close()
    with pytest.raises(Closed, match="inspect"):
        view.source.liveness.alive(7)
    inspect(image.path)
    assert not ours()
    items = inspect(image.path).items()
    assert next(items).seq == 1
    assert len(ours()) == 2
    del items
    assert not ours()
    walk = inspect(image.path).walk()
    assert len(list(walk)) == 3
    del walk
    assert not ours()


def test_settled_items_are_left_out_unless_asked_for(image: Image) -> None:
    segment = image.segment()
    for number in range(70):
        offset = segment.put(b"item %d" % number)
        if number == 39:
            image.floor, image.floor_position = 40, layout.position(1, offset)
    image.acked = {42, 63, 64}
    image.write()
    wanted = [seq for seq in range(40, 71) if seq not in (42, 63, 64)]
    assert seqs(image.path) == wanted
    assert seqs(image.path, unacked_only=False) == list(range(1, 71))
    image.live()
    image.write()
    assert seqs(image.path) == wanted
    report = verify(image.path)
    assert report.counts.depth == report.stated["depth"] == len(wanted)
    assert report.counts.settled == 3


def test_segments_follow_each_other_over_padding_and_epochs(image: Image) -> None:
    first = image.segment()
    first.put(b"a" * 40000)
    first.pad()
    second = image.segment(skip=100)
    second.put(b"b")
    image.write()
    assert seqs(image.path) == [1, 102]
    report = verify(image.path)
    assert report.counts.lost == 0
    assert [segment.items for segment in report.segments] == [1, 1]
    assert not report.damage


@pytest.mark.parametrize("live", [False, True])
def test_a_flipped_bit_anywhere_costs_at_most_its_own_item(image: Image, live: bool) -> None:
    segment = image.segment()
    offsets = [segment.put(bytes([n]) * 90) for n in range(20)]
    if live:
        image.live()
    image.durable_position = segment.end
    image.cursor_next_seq = segment.next_seq
    image.write()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    file = image.path / name()
    for _ in range(300):
        number = rng.randrange(20)
        place = offsets[number] + rng.randrange(48 + 90)
        bit = rng.randrange(8)
        flip(file, place, bit)
        found = seqs(image.path)
        assert [seq for seq in found if seq != number + 1] == [
            seq for seq in range(1, 21) if seq != number + 1
        ]
        report = verify(image.path)
        assert report.counts.ready + report.counts.damaged + report.counts.lost == 20
        assert report.counts.ready == len(found)
        assert report.damage == (len(found) < 20)
        flip(file, place, bit)


def test_state_word_damage_loses_nothing(image: Image) -> None:
    segment = image.segment()
    offset = segment.put(b"kept")
    image.write()
    for bit in range(8):
        flip(image.path / name(), offset, bit)
        assert seqs(image.path) == [1]
        flip(image.path / name(), offset, bit)


def test_a_wiped_page_loses_its_frames_and_the_count_is_exact(image: Image) -> None:
    segment = image.segment()
    for _ in range(300):
        segment.put(b"z" * 64)
    image.live()
    image.write()
    data = bytearray((image.path / name()).read_bytes())
    data[20480:24576] = bytes(4096)
    (image.path / name()).write_bytes(data)
    report = verify(image.path)
    left = len(seqs(image.path))
    assert report.counts.lost == 300 - left
    assert 31 <= 300 - left <= 34
    (finding,) = [f for f in report.findings if f.severity == "error"]
    assert finding.file == name()
    assert "items" in finding.message


def test_loss_at_the_end_is_known_from_the_tail_and_from_the_watermark(image: Image) -> None:
    segment = image.segment()
    for _ in range(5):
        last = segment.put(b"z" * 64)
    image.live()
    image.cursor_next_seq = segment.next_seq
    image.durable_position = segment.end
    image.durable_items = 5
    image.write()
    data = bytearray((image.path / name()).read_bytes())
    data[last : last + 200] = bytes(200)
    (image.path / name()).write_bytes(data)
    assert verify(image.path).counts.lost == 1
    (image.path / "control").unlink()
    assert verify(image.path).counts.lost == 1


def test_a_missing_segment_is_counted_from_the_next_ones_roll_record(image: Image) -> None:
    for _ in range(3):
        segment = image.segment()
        for _ in range(4):
            segment.put(b"y" * 10000)
        segment.pad()
    image.write()
    (image.path / name(2)).unlink()
    assert seqs(image.path) == [1, 2, 3, 4, 9, 10, 11, 12]
    report = verify(image.path)
    assert report.counts.lost == 4
    assert report.damage


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("gone", [(1,), (1, 2), (1, 2, 3), (2, 3), (3,)])
def test_missing_segments_are_named_with_what_they_held(
    image: Image, live: bool, gone: tuple[int, ...]
) -> None:
    """The walk used to begin at the first file that was there: what lay before it was not missed.

    Item 1 is settled, and so is 3 above the floor.
    """
    for _ in range(3):
        segment = image.segment()
        for _ in range(4):
            segment.put(b"y" * 10000)
        segment.pad()
    image.floor, image.acked = 2, {3}
    image.floor_position = layout.position(1, layout.SEGMENT_FIRST + 10048)
    image.cursor_next_seq, image.durable_position = segment.next_seq, segment.end
    image.durable_items = 12
    image.totals["settled_items"] = 2
    if live:
        image.live()
    image.write()
    assert not verify(image.path).damage
    for generation in gone:
        (image.path / name(generation)).unlink()
    owed = [seq for seq in range(2, 13) if seq != 3]
    lost = [seq for seq in owed if (seq - 1) // 4 + 1 in gone]
    report = verify(image.path)
    assert report.damage
    assert (report.counts.lost, report.counts.depth) == (len(lost), len(owed))
    (finding,) = [f for f in report.findings if f.severity == "error"]
    assert finding.file == name(gone[0])
    first, last = max(2, gone[0] * 4 - 3), gone[-1] * 4
    assert f"items {first} to {last} are gone" in finding.message
    assert f"{len(lost)} lost" in finding.message
    if len(gone) > 1:
        assert f"{len(gone)} from this one on are missing" in finding.message
    with inspect(image.path) as view:
        assert [record.seq for record in view.items()] == [s for s in owed if s not in lost]
        assert view.unreadable == len(lost)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_floor_segment_without_its_beginning_owes_it(
    image: Image, live: bool, whole: bool
) -> None:
    """No header, no roll record and no first frames (or none at all): the floor still knows."""
    for _ in range(2):
        segment = image.segment()
        for _ in range(4):
            segment.put(b"y" * 10000)
        segment.pad()
    image.cursor_next_seq, image.durable_position = segment.next_seq, segment.end
    if live:
        image.live()
    image.write()
    data = bytearray((image.path / name()).read_bytes())
    upto = len(data) if whole else layout.SEGMENT_FIRST + 2 * 10048
    data[:upto] = bytes(upto)
    (image.path / name()).write_bytes(data)
    report = verify(image.path)
    assert report.counts.lost == (4 if whole else 2)
    assert report.damage


@pytest.mark.parametrize("rolled", [False, True])
def test_padding_at_the_floor_owes_nothing_whatever_lies_ahead_of_it(
    image: Image, rolled: bool
) -> None:
    """A power cut took what was settled and the two items at the floor; recovery padded those."""
    segment = image.segment()
    for _ in range(3):
        segment.put(b"settled" * 100)
    image.floor, image.floor_position = 4, segment.end
    segment.put(bytes(1952), code=layout.PAD, flags=layout.FLAG_PAD, seq=4)
    segment.put(b"after", seq=6)
    image.durable_position, image.cursor_next_seq = segment.end, 7
    image.write()
    data = bytearray((image.path / name()).read_bytes())
    first = layout.SEGMENT_FIRST if rolled else 0
    end = layout.position_parts(image.floor_position)[1]
    data[first:end] = bytes(end - first)
    (image.path / name()).write_bytes(data)
    report = verify(image.path)
    assert (report.counts.lost, report.counts.ready, report.damage) == (0, 1, False)
    settled = [finding.seq for finding in report.findings if "were settled" in finding.message]
    assert settled == ([1] if rolled else [])  # nothing tells what had been there without a roll
    assert seqs(image.path) == [6]


def test_a_floor_behind_a_segment_that_is_gone_misses_nothing(image: Image) -> None:
    for _ in range(2):
        segment = image.segment()
        for _ in range(4):
            segment.put(b"y" * 10000)
        segment.pad()
    image.floor, image.floor_position = 5, image.segments[0].end
    image.live()
    image.write()
    (image.path / name()).unlink()
    report = verify(image.path)
    assert (report.counts.lost, report.counts.ready, report.damage) == (0, 4, False)


def test_seqs_that_an_epoch_skipped_are_not_lost(image: Image) -> None:
    image.segment().put(b"one")
    segment = image.segment(skip=1000)
    segment.put(b"two")
    image.live(epoch_previous_seq=2, epoch_first_seq=1002)
    image.write()
    for generation in (1, 2):
        (image.path / name(generation)).unlink()
    assert verify(image.path).counts.lost == 2


def test_items_that_control_owes_and_no_file_holds_are_damage(image: Image) -> None:
    """Whatever the walk could say of them: a count that is too low is no mere warning."""
    segment = image.segment()
    segment.put(b"one")
    segment.put(b"three", seq=3)
    image.live()
    image.write()
    report = verify(image.path)
    (finding,) = [f for f in report.findings if f.severity == "error"]
    assert "1 item is owed and in no file" in finding.message


def test_leftovers_of_a_killed_claim_behind_the_tail_are_no_items(image: Image) -> None:
    segment = image.segment()
    segment.put(b"one")
    image.live()
    image.write()
    segment.put(b"beyond", code=layout.CLAIMED, incarnation=DEAD)
    (image.path / name()).write_bytes(segment.bytes())
    assert seqs(image.path) == [1]
    assert verify(image.path).counts.depth == 1


def test_old_frames_of_a_smaller_seq_do_not_come_back(image: Image) -> None:
    segment = image.segment()
    segment.put(b"one", seq=50)
    segment.put(b"stale", seq=7)
    segment.next_seq = 51
    image.write()
    assert seqs(image.path) == [50]


def test_a_dead_claim_is_a_gap_and_after_a_reboot_whole_bytes_are_an_item(image: Image) -> None:
    segment = image.segment()
    segment.put(b"one")
    segment.put(b"dead but whole", code=layout.CLAIMED, incarnation=DEAD)
    segment.put(b"dead and torn", code=layout.CLAIMED, incarnation=DEAD, good_body=False)
    segment.put(b"gap", code=layout.GAP)
    segment.put(b"five")
    image.live()
    image.write()
    assert seqs(image.path) == [1, 5]
    report = verify(image.path)
    assert (report.counts.ready, report.counts.gaps, report.counts.depth) == (2, 3, 5)
    assert not report.damage
    (image.path / "control").unlink()
    assert seqs(image.path) == [1, 2, 5]
    assert verify(image.path).counts.gaps == 2


def test_a_batch_with_a_gap_is_dropped_whole(image: Image) -> None:
    segment = image.segment()
    segment.put(b"a", flags=FIRST)
    segment.put(b"b", flags=MIDDLE, code=layout.GAP)
    segment.put(b"c", flags=LAST)
    segment.put(b"d", flags=FIRST)
    segment.put(b"e", flags=LAST)
    image.write()
    assert seqs(image.path) == [4, 5]
    counts = verify(image.path).counts
    assert (counts.gaps, counts.lost, counts.depth) == (3, 0, 5)


def test_an_incomplete_batch_counts_only_below_the_watermark(image: Image) -> None:
    segment = image.segment()
    segment.put(b"a", flags=FIRST)
    segment.put(b"b", flags=MIDDLE, good_body=False)
    segment.put(b"c", flags=LAST)
    image.write()
    report = verify(image.path)
    assert (report.counts.ready, report.counts.gaps, report.damage) == (0, 2, False)
    assert (report.counts.torn, report.counts.depth) == (1, 2)
    image.durable_position = segment.end
    image.write()
    report = verify(image.path)
    assert (report.counts.ready, report.counts.damaged, report.damage) == (2, 1, True)
    assert seqs(image.path) == [1, 3]


def test_a_body_that_imitates_a_frame_is_not_taken_for_one(image: Image) -> None:
    inner = image.segment()
    inner.put(b"imitation", seq=9)
    fake = bytes(inner.data[layout.SEGMENT_FIRST : layout.SEGMENT_FIRST + 64])
    image.segments.clear()
    segment = image.segment()
    offset = segment.put(bytes(16) + fake + b"tail" * 50)
    segment.put(b"next")
    image.write()
    flip(image.path / name(), offset + 8, 1)
    flip(image.path / name(), offset + 17, 1)
    assert seqs(image.path) == [2]


def test_meta_falls_back_to_its_twin_and_refuses_without_one(image: Image) -> None:
    image.segment().put(b"one")
    image.write()
    flip(image.path / "meta", 100)
    assert seqs(image.path) == [1]
    assert any(f.file == "meta" and f.severity == "warning" for f in verify(image.path).findings)
    flip(image.path / "meta", 4096 + 100)
    with pytest.raises(FormatError, match="neither slot"):
        inspect(image.path)


def test_a_newer_format_and_no_queue_are_refused(image: Image, tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match="mpqueue init"):
        inspect(tmp_path / "nothing")
    image.meta = {"version": 2}
    image.segment().put(b"one")
    with pytest.raises(FormatError, match="version 2"):
        inspect(image.write())


def test_a_torn_cursor_slot_falls_back_and_a_missing_cursor_redelivers(image: Image) -> None:
    segment = image.segment()
    for _ in range(5):
        segment.put(b"x")
    image.floor, image.acked = 3, {4}
    image.write()
    flip(image.path / "cursor", 600)
    assert seqs(image.path) == [3, 5]
    (image.path / "cursor").unlink()
    assert seqs(image.path) == [1, 2, 3, 4, 5]
    assert any(finding.file == "cursor" for finding in verify(image.path).findings)


@pytest.mark.parametrize(
    ("values", "reason"),
    [({"meta_inode": 1}, "copied"), ({"version": 9}, "version"), ({"magic": 5}, "magic")],
)
def test_control_is_believed_only_for_this_boot_and_meta(
    image: Image, values: dict[str, int], reason: str
) -> None:
    image.segment().put(b"one")
    image.live(**values)
    with inspect(image.write()) as view:
        assert not view.trusted
        assert view.control is not None
        assert reason in view.control.reason
        assert view.members == []


def test_poison_and_foreign_files_are_named(image: Image) -> None:
    image.segment().put(b"one")
    image.meta = {"poison_errno": 5, "poison_stage": 1}
    image.write()
    (image.path / "notes.txt").write_text("mine")
    report = verify(image.path)
    assert report.damage
    assert any("poisoned" in finding.message for finding in report.findings)
    assert any(finding.file == "notes.txt" for finding in report.findings)
    assert report.as_dict()["damage"] is True


def test_nothing_is_written(image: Image) -> None:
    segment = image.segment()
    for _ in range(50):
        segment.put(b"x" * 500)
    image.live()
    image.write()
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in image.path.iterdir()}
    for file in image.path.iterdir():
        file.chmod(0o400)
    image.path.chmod(0o500)
    assert verify(image.path).counts.ready == 50
    assert len(seqs(image.path)) == 50
    after = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in image.path.iterdir()}
    assert before == after
    image.path.chmod(0o700)


def test_damaged_static_header_and_roll_have_twins(image: Image) -> None:
    image.segment().put(b"one")
    image.write()
    flip(image.path / name(), 30)
    flip(image.path / name(), layout.SEGMENT_ROLL_A + 20)
    report = verify(image.path)
    assert report.counts.ready == 1
    assert not report.damage
    assert {finding.offset for finding in report.findings if finding.file == name()} == {
        0,
        layout.SEGMENT_ROLL_A,
    }


def test_an_item_inside_the_leftover_of_a_killed_claim_wins(image: Image) -> None:
    segment = image.segment()
    segment.put(b"one")
    start = segment.offset
    segment.put(bytes(4000), code=layout.CLAIMED, incarnation=DEAD, good_body=False)
    segment.offset, segment.next_seq = start + 96, 3
    segment.put(b"three")
    segment.put(b"four")
    image.write()
    assert seqs(image.path) == [1, 3, 4]
    image.durable_position = segment.end
    image.write()
    assert seqs(image.path) == [1]


def test_a_torn_batch_that_was_acked_in_part_had_been_whole(image: Image) -> None:
    segment = image.segment()
    segment.put(b"a", flags=FIRST)
    torn = segment.put(b"b", flags=MIDDLE, good_body=False)
    segment.put(b"c", flags=LAST)
    image.floor, image.floor_position = 2, layout.position(1, torn)
    image.write()
    assert seqs(image.path) == [3]


def test_seqs_missing_between_whole_frames_were_settled_by_a_repair(image: Image) -> None:
    segment = image.segment()
    segment.put(b"one")
    segment.put(bytes(80), code=layout.PAD, flags=layout.FLAG_PAD, seq=3)
    segment.put(b"three", seq=3)
    image.totals = {"lost_items": 1}
    image.live()
    image.write()
    report = verify(image.path)
    assert (report.counts.ready, report.counts.lost, report.damage) == (2, 0, False)


def test_random_bytes_never_break_the_reader(image: Image) -> None:
    """Any file may hold anything: the reader reports or refuses, and never fails otherwise."""
    segment = image.segment()
    for _ in range(30):
        segment.put(b"q" * 200)
    image.live()
    image.write()
    originals = {file: file.read_bytes() for file in image.path.iterdir()}
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        for file, data in originals.items():
            file.write_bytes(data)
        victim = rng.choice(sorted(originals))
        data = bytearray(originals[victim])
        start = rng.randrange(len(data))
        length = rng.choice([1, 8, 100, 5000])
        data[start : start + length] = rng.randbytes(min(length, len(data) - start))
        if rng.random() < 0.2:
            del data[start:]
        victim.write_bytes(data)
        try:
            report = verify(image.path)
            bodies = [record.body for record in inspect(image.path).items()]
        except (FormatError, NotAQueue):
            assert victim.name == "meta"
            continue
        assert all(body == b"q" * 200 for body in bodies)
        assert report.counts.ready == len(bodies)
