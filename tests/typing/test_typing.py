"""Goal: `Queue[T]` is typed for its users. Method: mypy --strict and pyright over api.py, whose
comments say what is revealed on a line, or that the line is an error; nothing more, nothing less.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

API = Path(__file__).parent / "api.py"


@pytest.fixture
def wanted() -> dict[int, str]:
    """What each line is to reveal, or "error", by its number."""
    lines = enumerate(API.read_text().splitlines(), 1)
    found = {number: line.rpartition("  # ")[2] for number, line in lines if "  # " in line}
    assert len(found) > 30
    return found


def test_mypy_reveals_what_the_comments_say(
    wanted: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the installed package is meant, not the one that lies here
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


def test_pyright_reveals_the_same(wanted: dict[int, str], tmp_path: Path) -> None:
    checker = shutil.which("basedpyright", path=Path(sys.executable).parent)
    if checker is None:
        pytest.skip("basedpyright is not installed: pip install 'mpqueue[types]'")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({"include": [str(API)], "typeCheckingMode": "standard"}))
    done = subprocess.run(
        [checker, "--outputjson", "-p", str(config), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    found: dict[int, str] = {}
    for said in json.loads(done.stdout)["generalDiagnostics"]:
        number = said["range"]["start"]["line"] + 1
        if said["severity"] == "error":
            found[number] = "error"
        elif revealed := re.fullmatch(r'Type of ".*" is "(.*)"', said["message"], re.DOTALL):
            found[number] = revealed[1]
    assert found == wanted, done.stdout
