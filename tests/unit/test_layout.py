"""The Python table of the format equals what the C compiler makes of `layout.h`.

Goal: the second reader can never read a field at another place than the core writes it.
Method: a generated C program prints the size of every structure, the offset of every field and
the value of every constant; all are compared, and with the tables of docs/format.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mpqueue import layout

NATIVE = Path(__file__).resolve().parents[2] / "mpqueue" / "native"
CONSTANTS = {
    "MPQ_FORMAT_VERSION": layout.FORMAT_VERSION,
    "MPQ_PAGE": layout.PAGE,
    "MPQ_LINE": layout.LINE,
    "MPQ_META_MAGIC": layout.META_MAGIC,
    "MPQ_CONTROL_MAGIC": layout.CONTROL_MAGIC,
    "MPQ_CURSOR_MAGIC": layout.CURSOR_MAGIC,
    "MPQ_SEGMENT_MAGIC": layout.SEGMENT_MAGIC,
    "MPQ_ROLL_MAGIC": layout.ROLL_MAGIC,
    "MPQ_BYTE_GATE": layout.BYTE_GATE,
    "MPQ_BYTE_CONSUMER": layout.BYTE_CONSUMER,
    "MPQ_BYTE_META": layout.BYTE_META,
    "MPQ_BYTE_MEMBERS": layout.BYTE_MEMBERS,
    "MPQ_BYTE_VIEWS": layout.BYTE_VIEWS,
    "MPQ_FREE": layout.FREE,
    "MPQ_CLAIMED": layout.CLAIMED,
    "MPQ_READY": layout.READY,
    "MPQ_GAP": layout.GAP,
    "MPQ_PAD": layout.PAD,
    "MPQ_FRAME_ALIGN": layout.FRAME_ALIGN,
    "MPQ_FRAME_HEADER": layout.FRAME_HEADER,
    "MPQ_FLAG_PAD": layout.FLAG_PAD,
    "MPQ_FLAG_BATCH": layout.FLAG_BATCH,
    "MPQ_FLAG_BATCH_FIRST": layout.FLAG_BATCH_FIRST,
    "MPQ_FLAG_BATCH_LAST": layout.FLAG_BATCH_LAST,
    "MPQ_SEED_GENERATION": layout.SEED_GENERATION,
    "MPQ_SEED_OFFSET": layout.SEED_OFFSET,
    "MPQ_SEED_SEQ": layout.SEED_SEQ,
    "MPQ_EXT_NOT_BEFORE": layout.EXT_NOT_BEFORE,
    "MPQ_EXT_ATTEMPTS": layout.EXT_ATTEMPTS,
    "MPQ_EXT_ORIGIN": layout.EXT_ORIGIN,
    "MPQ_EXT_KEY": layout.EXT_KEY,
    "MPQ_EXT_HEADERS": layout.EXT_HEADERS,
    "MPQ_EXT_CONTENT_TYPE": layout.EXT_CONTENT_TYPE,
    "MPQ_EXT_CODEC": layout.EXT_CODEC,
    "MPQ_EXT_REASON": layout.EXT_REASON,
    "MPQ_EXT_HISTORY": layout.EXT_HISTORY,
    "MPQ_SEGMENT_HEADER_A": layout.SEGMENT_HEADER_A,
    "MPQ_SEGMENT_HEADER_B": layout.SEGMENT_HEADER_B,
    "MPQ_SEGMENT_ROLL_A": layout.SEGMENT_ROLL_A,
    "MPQ_SEGMENT_ROLL_B": layout.SEGMENT_ROLL_B,
    "MPQ_SEGMENT_FIRST": layout.SEGMENT_FIRST,
    "MPQ_POSITION_BITS": layout.POSITION_BITS,
    "MPQ_BACKOFF_MAX": layout.BACKOFF_MAX,
    "MPQ_KEYS": layout.KEYS,
    "MPQ_CURSOR_HEADER": layout.CURSOR_HEADER,
    "MPQ_CURSOR_ATTEMPTS": layout.CURSOR_ATTEMPTS,
    "MPQ_RING": layout.RING,
    "MPQ_RING_EMPTY": layout.RING_EMPTY,
    "MPQ_RING_PREPARING": layout.RING_PREPARING,
    "MPQ_RING_PREPARED": layout.RING_PREPARED,
    "MPQ_RING_KEPT": layout.RING_KEPT,
    "MPQ_HISTOGRAM": layout.HISTOGRAM,
    "MPQ_ROLE_PRODUCER": layout.ROLE_PRODUCER,
    "MPQ_ROLE_CONSUMER": layout.ROLE_CONSUMER,
    "MPQ_DURABILITY_NONE": layout.DURABILITY_NAMES.index("none"),
    "MPQ_DURABILITY_INTERVAL": layout.DURABILITY_NAMES.index("interval"),
    "MPQ_DURABILITY_GROUP": layout.DURABILITY_NAMES.index("group"),
    "MPQ_DURABILITY_SYNC": layout.DURABILITY_NAMES.index("sync"),
    "MPQ_STAGE_SEGMENT": layout.STAGE_NAMES.index("segment"),
    "MPQ_STAGE_CURSOR": layout.STAGE_NAMES.index("cursor"),
    "MPQ_STAGE_META": layout.STAGE_NAMES.index("meta"),
    "MPQ_STAGE_DIRECTORY": layout.STAGE_NAMES.index("directory"),
    "MPQ_FRAME_EXTENT(8, 1)": layout.frame_extent(8, 1),
    "MPQ_FRAME_EXTENT(0, 16)": layout.frame_extent(0, 16),
    "MPQ_POSITION(77, 4128)": layout.position(77, 4128),
    "MPQ_CURSOR_SLOT_BYTES(32768)": layout.cursor_slot_bytes(32768),
    "MPQ_CURSOR_SLOT_BYTES(64)": layout.cursor_slot_bytes(64),
    "MPQ_CONTROL_MEMBERS": -(-layout.CONTROL.size // layout.PAGE) * layout.PAGE,
}


def test_every_offset_size_and_constant_equals_the_compilers(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not (NATIVE / "layout.h").exists():
        pytest.skip("needs a C compiler and a source tree")
    lines = ["#include <stdio.h>", '#include "layout.h"', "int main(void) {"]
    expected: list[str] = []
    for table in layout.LAYOUTS:
        lines.append(f'printf("%zu\\n", sizeof(struct {table.name}));')
        expected.append(f"{table.name} {table.size}")
        for field in table.fields.values():
            place = f"offsetof(struct {table.name}, {field.name})"
            size = f"sizeof(((struct {table.name} *)0)->{field.name})"
            lines.append(f'printf("%zu+%zu\\n", {place}, {size});')
            expected.append(f"{table.name}.{field.name} {field.offset}+{field.size}")
    for name, value in CONSTANTS.items():
        lines.append(f'printf("%llu\\n", (unsigned long long)({name}));')
        expected.append(f"{name} {value}")
    lines.append("return 0; }")
    source = tmp_path / "print.c"
    source.write_text("\n".join(lines))
    program = tmp_path / "print"
    subprocess.run(
        [compiler, "-std=c11", f"-I{NATIVE}", str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    actual = [
        f"{text.rsplit(' ', 1)[0]} {value}" for text, value in zip(expected, printed, strict=True)
    ]
    assert actual == expected


def test_a_byte_one_bit_away_is_read_as_its_code() -> None:
    for code in layout.CODES:
        assert layout.CODE_OF_BYTE[code] == code
        for bit in range(8):
            assert layout.CODE_OF_BYTE[code ^ (1 << bit)] == code


def test_positions_round_trip_and_order() -> None:
    assert layout.position_parts(layout.position(3, 16384)) == (3, 16384)
    assert layout.position(3, (1 << 30) - 32) < layout.position(4, 0)


def test_a_table_that_overflows_its_size_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond"):
        layout.Layout("mpq_small", 8, "a:Q b:Q")
    with pytest.raises(ValueError, match="name:format"):
        layout.Layout("mpq_bad", 8, "a:q")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
UNITS = {"u64": 8, "u32": 4, "u16": 2, "bytes": 1, "entries": layout.KEY.size}
OTHER_WORDS = {"window": "bitmap", "magic": "MPQ-", "keys_count": "keys in use"}


def _rows(section: str) -> list[tuple[int, int, str]]:
    """Offset, size and text of the rows of a section's table."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = []
    for offset, kind, words in re.findall(r"^\| (\d+) \| ([^|]+) \| (.*) \|$", text, re.MULTILINE):
        size = 0
        for count, unit in re.findall(r"(\d+ )?(u\d+|bytes|entries)\b", kind):
            size += int(count or 1) * UNITS[unit]
        found.append((int(offset), size, words))
    return found


@pytest.mark.parametrize(
    ("section", "table"),
    [("Frame", layout.FRAME), ("meta", layout.META_SLOT), ("cursor", layout.CURSOR_SLOT)],
)
def test_the_page_names_every_field_at_its_offset(section: str, table: layout.Layout) -> None:
    rows = _rows(section)[: len(table.fields)]  # that of encrypted payloads follows the frame's
    missing = []
    for field in table.fields.values():
        if field.name.startswith("reserved"):
            continue
        word = OTHER_WORDS.get(field.name, field.name.split("_")[0].rstrip("s"))
        if not any(
            offset <= field.offset and field.offset + field.size <= offset + size and word in words
            for offset, size, words in rows
        ):
            missing.append(f"{field.offset}: {field.name}")
    assert not missing
    known = [(f.offset, f.offset + f.size) for f in table.fields.values()]
    for offset, size, words in rows:
        assert offset in dict(known), words
        assert offset + size in {end for _, end in known}, words


def test_the_page_lists_the_options_in_their_order() -> None:
    text = PAGE.read_text().partition("\nOptions, from offset 112: ")[2].partition("\n\n")[0]
    wanted = [name for name in layout.OPTIONS.fields if not name.startswith("reserved")]
    assert [word for word in re.findall(r"\w+", text) if word in wanted] == wanted


def test_the_page_names_the_types_of_extension_entries() -> None:
    rows = dict(re.findall(r"^\| (\d+) ([a-z ]+) \|", PAGE.read_text(), re.MULTILINE))
    for name, number in vars(layout).items():
        if name.startswith("EXT_"):
            assert name.removeprefix("EXT_").lower().replace("_", " ") in rows[str(number)]
