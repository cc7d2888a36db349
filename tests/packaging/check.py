"""Builds sdist and wheels, looks inside, installs them where there is no development tool.

Usage: python tests/packaging/check.py OUT [PYTHON ...]

OUT receives the sdist and the wheel that was built from the sdist. Every PYTHON (default: this one)
gets an empty environment in which PATH leads to no compiler and no cmake; there the wheel is
installed and smoke.py run with no environment variables at all. Needs the package `build`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def build(source: Path, out: Path, *kinds: str) -> None:
    """Runs the build front end."""
    subprocess.run(
        [sys.executable, "-m", "build", *kinds, "--outdir", str(out), str(source)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def only(directory: Path, pattern: str) -> Path:
    """The one file there that matches."""
    found = sorted(directory.glob(pattern))
    assert len(found) == 1, f"{directory}: expected one {pattern}, found {found}"
    return found[0]


def look_inside(sdist: Path, wheel: Path) -> None:
    """The sdist can be built from; the wheel carries no sources and one stable-ABI module."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    native = {f"mpqueue/native/{path.name}" for path in ROOT.glob("mpqueue/native/*.[ch]")}
    wanted = native | {"LICENSE", "README.md", "pyproject.toml", "mpqueue/native/CMakeLists.txt"}
    assert wanted <= names, f"missing from the sdist: {sorted(wanted - names)}"
    assert "-cp311-abi3-" in wheel.name, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert {"mpqueue/py.typed", "mpqueue/_native.pyi", "mpqueue/_native.abi3.so"} <= inside
    sources = [name for name in inside if name.startswith("mpqueue/native/")]
    assert not sources, f"the wheel carries {sources}"


def install_and_smoke(python: str, wheel: Path) -> None:
    """An empty environment, no tools on PATH, no variables when it runs."""
    with tempfile.TemporaryDirectory() as directory:
        venv = Path(directory) / "venv"
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        tools = Path(directory) / "no-tools"
        tools.mkdir()
        environment = {**os.environ, "PATH": str(tools)}
        environment.pop("CC", None)
        subprocess.run(
            [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)],
            check=True,
            env=environment,
        )
        subprocess.run(
            [str(venv / "bin/python"), "-I", str(HERE / "smoke.py"), str(venv / "bin")],
            check=True,
            env={},
            cwd=directory,
        )


def main() -> None:
    """0 when everything held."""
    out = Path(sys.argv[1])
    pythons = sys.argv[2:] or [sys.executable]
    with tempfile.TemporaryDirectory() as directory:
        build(ROOT, out)  # the sdist, then a wheel from it
        direct = Path(directory) / "direct"
        build(ROOT, direct, "--wheel")
        sdist, wheel = only(out, "*.tar.gz"), only(out, "*.whl")
        look_inside(sdist, wheel)
        look_inside(sdist, only(direct, "*.whl"))
        for python in pythons:
            install_and_smoke(python, wheel)
        install_and_smoke(pythons[0], only(direct, "*.whl"))
    print(f"packaging ok: {sdist.name}, {wheel.name}")


main()
