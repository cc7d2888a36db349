"""Goal: signals, closed pipes and closed streams end a verb with its exit code and no traceback.

Method: real processes. A signal is sent by the process to itself at a chosen import, so that every
moment of starting up has its run; at a moment that the queue's files show; or when it waits.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mpqueue

MPQUEUE = [sys.executable, "-P", "-m", "mpqueue"]
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Runs the program as its console script does; kills itself at the import with a given number.
_AT_IMPORT = """
import os, signal, sys
number, at = int(sys.argv[1]), int(sys.argv[2])

class Finder:
    count = 0
    def find_spec(self, name, path=None, target=None):
        self.count += 1
        if self.count == at:
            os.kill(os.getpid(), number)
        return None

finder = Finder()
sys.argv[:] = ["mpqueue", *sys.argv[3:]]
import mpqueue
import mpqueue.__main__
sys.meta_path.insert(0, finder)
code = mpqueue.__main__.main()
if at == 0:
    print(finder.count, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "queue"
    with mpqueue.Queue(path, durability="none", segment_size=1 << 20) as q:
        q.put_many([b"%d" % number for number in range(2000)])
    return str(path)


def _run(words: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*MPQUEUE, *words], stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("verb", ["stats", "doctor", "peek", "put"])
def test_a_signal_at_any_import_is_silent(path: str, verb: str) -> None:
    """Ctrl-C while a verb was still being imported used to print where."""

    def run(number: int, at: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-P", "-c", _AT_IMPORT, str(number), str(at), verb, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    imports = int(run(signal.SIGINT, 0).stderr.split()[-1])
    assert imports > 10
    for at in range(1, imports + 1, 7):
        for number in SIGNALS:
            done = run(number, at)
            assert (done.returncode, done.stderr) in (
                (128 + number, b""),
                (128 + number, b"mpqueue: 0 items were put before this\n"),
            )


def test_interrupts_that_are_ignored_stay_ignored(path: str) -> None:
    """A background job of a shell has SIGINT ignored: Ctrl-C is not for it."""
    code = _AT_IMPORT.replace(
        "import os, signal, sys",
        "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(int(signal.SIGINT)), "5", "stats", path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0


def _guarded(pid: int) -> bool:
    """Its first line has run: it catches SIGTERM, which the interpreter alone does not."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "x 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "words",
    [
        ["put", "PATH"],
        ["get", "PATH", "-n", "all", "--follow"],
        ["exec", "PATH", "-j", "2", "--", "echo", "a line"],
        ["peek", "PATH", "-n", "5000"],
        ["export", "PATH"],
        ["verify", "PATH", "--deep"],
        ["bench", "--seconds", "3600", "--durability", "none"],
        ["demo"],
    ],
    ids=lambda words: words[0],
)
def test_a_signal_to_the_whole_group_is_silent(
    path: str, tmp_path: Path, words: list[str], number: signal.Signals, again: bool
) -> None:
    """As Ctrl-C does it, at several moments; no child stays behind and no file.

    A second one does not wait until everything is tidy, but no child outlives it.
    """
    words = [path if word == "PATH" else word for word in words]
    for later in (0, 800, 6000):
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [*MPQUEUE, *words],
            stdin=subprocess.PIPE,
            stdout=writing,  # nobody reads: what prints a lot stands still
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        os.close(writing)
        while not _guarded(process.pid):
            assert process.poll() is None
        for _ in range(later):  # spreads the moments; any will do
            _guarded(process.pid)
        os.killpg(process.pid, number)
        if again:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        _, talk = process.communicate()
        os.close(reading)
        lines = [line for line in talk.splitlines() if not line.startswith(b"mpqueue: ")]
        assert lines == [], talk
        # A shell tells no difference: at the very end the interpreter lets signals kill it.
        assert process.returncode in (128 + number, 0, -number), talk
        while again and _group_lives(process.pid):
            pass  # killed children are init's to reap
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert again or os.listdir(tmp_path) == ["queue"]


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_count_of_an_interrupted_put_is_true(path: str) -> None:
    """ "0 items were put before this" was said after thousands had gone in."""
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    with mpqueue.Queue(path) as q:
        before = q.stats().items_enqueued
        process = subprocess.Popen(
            [*MPQUEUE, "put", path, "--print-seq"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        _, talk = process.communicate(lines)
        assert process.returncode == 141
        count = int(talk.split()[1])
        assert count == q.stats().items_enqueued - before > 0
        for number in SIGNALS:
            before = q.stats().items_enqueued
            process = subprocess.Popen(
                [*MPQUEUE, "put", path], stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdin is not None
            process.stdin.write(lines)
            process.stdin.flush()
            process.send_signal(number)
            _, talk = process.communicate()
            assert process.returncode == 128 + number
            count = int(talk.split()[1])
            assert count == q.stats().items_enqueued - before


STDOUT = {
    "put": ["put", "PATH", "--print-seq"],
    "get": ["get", "PATH", "-n", "all"],
    "peek": ["peek", "PATH"],
    "export": ["export", "PATH"],
    "stats": ["stats", "PATH"],
    "verify": ["verify", "PATH"],
    "doctor": ["doctor", "PATH", "--json"],
    "bench": ["bench", "--seconds", "50ms", "--durability", "none"],
    "help": ["--help"],
}


@pytest.mark.parametrize("verb", STDOUT)
@pytest.mark.parametrize("stdout", ["broken pipe", "full disk", "closed"])
def test_an_output_that_cannot_be_written_is_an_error(path: str, verb: str, stdout: str) -> None:
    """And nothing that was not written counts as delivered."""
    words = [path if word == "PATH" else word for word in STDOUT[verb]]
    options: dict[str, object] = {"input": b"one\n"}
    if stdout == "closed":
        options["preexec_fn"] = lambda: os.close(1)
    elif stdout == "full disk":
        options["stdout"] = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        options["stdout"] = writing
    done = _run(words, **options)
    if isinstance(options.get("stdout"), int):
        os.close(options["stdout"])
    assert b"Traceback" not in done.stderr, done.stderr
    assert b"Exception ignored" not in done.stderr, done.stderr
    if verb != "help":  # argparse's own
        assert done.returncode == (141 if stdout == "broken pipe" else 74), done.stderr
    with mpqueue.inspect(path) as view:
        assert len(list(view.items())) == 2000 + (verb == "put")


@pytest.mark.parametrize("number", [0, 2])
def test_the_other_streams_may_be_closed(path: str, number: int) -> None:
    """No file of the queue gets the number of a standard stream."""
    close: Callable[[], None] = lambda: os.close(number)  # noqa: E731
    done = subprocess.run(
        [*MPQUEUE, "get", path, "-n", "2"], stdout=subprocess.PIPE, preexec_fn=close
    )
    assert (done.returncode, done.stdout) == (0, b"0\n1\n")
    done = subprocess.run([*MPQUEUE, "put", path], preexec_fn=close, input=b"x\n")
    assert done.returncode == (74 if number == 0 else 0)


@pytest.mark.parametrize(
    "words",
    [["--file", "/dev/zero"], ["--lines"], ["--jsonl"], ["--frame", "u32"], ["--null"]],
    ids=lambda words: words[0],
)
def test_input_without_end_is_not_kept_in_memory(tmp_path: Path, words: list[str]) -> None:
    """More than the largest item is refused: these once grew until the machine ended them."""
    path = str(tmp_path / "queue")
    mpqueue.Queue(path, max_item=1000, segment_size=1 << 16, max_segments=4).close()
    letters = (
        subprocess.Popen(["yes", "a" * 5000 if words == ["--null"] else ""], stdout=subprocess.PIPE)
        if "--null" in words
        else None
    )
    source = letters.stdout if letters else open("/dev/zero", "rb")
    assert source is not None
    limit = 1 << 30
    done = subprocess.run(
        [*MPQUEUE, "put", path, *words, "--on-full", "fail"],
        stdin=source,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    source.close()
    if letters:
        letters.kill()
        letters.wait()
    # Frames of length 0 are items: zeros fill the queue with those.
    assert done.returncode == (6 if "--frame" in words else 2), done.stderr
    assert b"Traceback" not in done.stderr
