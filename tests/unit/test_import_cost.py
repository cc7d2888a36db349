"""Goal: importing and using mpqueue stays cheap.

Method: list sys.modules in a fresh interpreter.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import mpqueue
from conftest import RunPython

HEAVY = {
    *("numpy", "asyncio", "argparse", "posix_ipc", "logging", "dataclasses", "typing", "enum"),
    *("re", "inspect", "subprocess", "socket", "multiprocessing", "sqlite3", "json", "xxhash"),
}


def test_import_loads_nothing_heavy(run_python: RunPython) -> None:
    loaded = run_python(
        """
        import sys, queue
        before = set(sys.modules)
        import mpqueue
        assert set(sys.modules) - before == {"mpqueue", "__future__"}
        mpqueue.Queue
        print(*sorted(set(sys.modules) - before))
        """
    ).split()
    assert "mpqueue._native" in loaded
    assert not HEAVY & set(loaded), loaded
    others = [name for name in loaded if not name.startswith("mpqueue")]
    assert set(others) <= {"__future__", "errno"}, "a new dependency of import mpqueue"


def test_every_public_name_comes_on_first_use(run_python: RunPython) -> None:
    """Whichever comes first, by attribute, by `from`, by `*`; and wrong ones are errors."""
    for code in (
        "import mpqueue; [getattr(mpqueue, name) for name in mpqueue.__all__]",
        "from mpqueue import *; assert Queue.__name__ == 'Queue' and inspect and Full",
        "import mpqueue; assert set(mpqueue.__all__) <= set(dir(mpqueue))",
        "import mpqueue; assert mpqueue.exceptions.Full is mpqueue.Full",
        "import mpqueue; assert mpqueue.queue.Queue is mpqueue.Queue",
        "import mpqueue; assert not hasattr(mpqueue, 'nonsense')",
    ):
        run_python(code)


def test_a_source_tree_without_its_core_says_so(run_python: RunPython, tmp_path: Path) -> None:
    """Whichever way to the core comes first."""
    source = Path(mpqueue.__file__).parent
    skipped = shutil.ignore_patterns("_native*", "native", "__pycache__")
    shutil.copytree(source, tmp_path / "mpqueue", ignore=skipped)
    for code in (
        "mpqueue.Queue",
        "from mpqueue import Queue",
        "import mpqueue.consumer",
        "import mpqueue.logging.marked",
        "from mpqueue import _native",
    ):
        run_python(
            """
            import sys
            sys.path.insert(0, sys.argv[1])
            import mpqueue
            try:
                exec(sys.argv[2])
            except ImportError as error:
                text = f"{sys.argv[1]}/mpqueue has no compiled core"
                assert str(error).startswith(text) and "pip" in str(error), error
            else:
                raise AssertionError("it was found")
            """,
            str(tmp_path),
            code,
        )


def test_putting_and_taking_load_no_logging_and_no_numpy(
    run_python: RunPython, tmp_path: object
) -> None:
    loaded = run_python(
        """
        import sys
        import mpqueue
        with mpqueue.Queue(sys.argv[1], segment_size=65536) as q:
            q.put(b"x", headers={"k": "v"})
            with q.consumer() as c, c.reserve() as item:
                assert item.body == b"x"
            q.stats(), q.options, q.members()
        print(*sorted(sys.modules))
        """,
        f"{tmp_path}/spool",
    ).split()
    assert not {"numpy", "asyncio", "argparse", "logging", "dataclasses"} & set(loaded)


def test_version_comes_from_the_installed_metadata(run_python: RunPython) -> None:
    printed = run_python(
        """
        import mpqueue
        from importlib.metadata import version
        assert mpqueue.__version__ == version("mpqueue")
        print(mpqueue.__version__)
        """
    )
    assert printed.strip()[0].isdigit()
