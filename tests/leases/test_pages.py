"""Goal: the examples of the pages on this subject run as they are printed.

Method: each fenced block of Python is executed in a directory of its own, warnings as errors.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("leases.md", "dead_letters.md")
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
