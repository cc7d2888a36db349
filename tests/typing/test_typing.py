"""Goal: `Queue[T]` is typed for its users. Method: mypy --strict over api.py, whose comments say
what is revealed on a line, or that the line is an error; nothing more and nothing less.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mypy import api

API = Path(__file__).parent / "api.py"


def test_mypy_reveals_what_the_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the installed package is meant, not the one that lies here
    wanted = {}
    for number, line in enumerate(API.read_text().splitlines(), 1):
        if "  # " in line:
            wanted[number] = line.rpartition("  # ")[2]
    assert len(wanted) > 30
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n")
    out, complaint, _ = api.run(
        [
            f"--config-file={config}",
            f"--cache-dir={tmp_path / 'cache'}",
            f"--python-executable={sys.executable}",
            str(API),
        ]
    )
    assert not complaint
    found: dict[int, str] = {}
    for line in out.splitlines():
        place = re.match(r".*api\.py:(\d+): (error|note): (.*)", line)
        if place is None:
            continue
        number, text = int(place[1]), place[3]
        if place[2] == "error":
            found[number] = "error"
        elif text.startswith("Revealed type is "):
            named = text.removeprefix("Revealed type is ").strip('"')
            found[number] = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", named)
    assert found == wanted, out
