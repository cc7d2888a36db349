"""Goal: no interleaving of real processes loses, alters or doubles an item. Method: ptrace.

Skipped where there is no C compiler with make; with CI=true that is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(600)
def test_processes_led_against_each_other(tmp_path_factory: pytest.TempPathFactory) -> None:
    missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"needs {' and '.join(missing)}")
    assert not missing, f"needs {' and '.join(missing)}"
    build = tmp_path_factory.getbasetemp() / "interleave-build"
    done = subprocess.run(
        ["make", "-C", str(HERE), f"BUILD={build}", "check"], capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
