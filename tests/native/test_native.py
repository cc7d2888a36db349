"""Goal: the C core's own tests pass, under sanitizers and valgrind. Method: make.

Skipped only where there is no C compiler with make; the tests are then the packager's to run. The
part under valgrind is skipped without that program, which fails where CI=true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None,
    reason="needs a C compiler and make",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["check-asan", "check-tsan", "check-memcheck"])
def test_c_tests_pass(target: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if target == "check-memcheck" and shutil.which("valgrind") is None:
        assert os.environ.get("CI") != "true", "valgrind is not installed"
        pytest.skip("valgrind is not installed")
    build = tmp_path_factory.getbasetemp() / "native-build"
    done = subprocess.run(
        ["make", f"-j{os.cpu_count() or 1}", "-C", str(HERE), f"BUILD={build}", target],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
