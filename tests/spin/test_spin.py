"""Goal: the protocols of the core hold in their models. Method: Spin, every interleaving.

Skipped where Spin or a C compiler is missing (Debian: apt-get install spin gcc); with CI=true in
the environment that is a failure instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MODELS = sorted(path.stem for path in HERE.glob("*.pml") if path.stem != "mortal")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", MODELS)
def test_model_holds_and_its_broken_variants_fail(model: str) -> None:
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"needs {' and '.join(missing)}")
    assert not missing, f"needs {' and '.join(missing)}"
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "run.py"), model], capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_model_and_every_broken_variant_is_run() -> None:
    """What a model's header lists and what run.py runs are the same."""
    script = (HERE / "run.py").read_text()
    for model in MODELS:
        text = (HERE / f"{model}.pml").read_text()
        listed = {
            line.split()[1][len("BREAK_") :]
            for line in text.split("*/")[0].splitlines()
            if line.strip().startswith("* BREAK_")
        }
        assert f'"{model}"' in script
        assert listed, model
        for name in listed:
            assert f'"{name}"' in script or f'"{name} ' in script, f"{model}: BREAK_{name}"
