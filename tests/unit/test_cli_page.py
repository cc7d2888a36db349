"""`mpqueue stats --html`: a page that stands alone, with the numbers that stats() has."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import mpqueue

VOID = {"meta"}


class Page(HTMLParser):
    """Text, and whether every element is closed by its own end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.rows: dict[str, str] = {}
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens."""
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens and closes."""
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Closes the one that was opened last."""
        assert self.open.pop() == tag
        if tag == "tr" and len(self.cells) == 2:
            self.rows[self.cells[0]] = self.cells[1]

    def handle_data(self, data: str) -> None:
        """Text of a cell."""
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def written(path: Path, file: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    words = [sys.executable, "-P", "-m", "mpqueue", "stats", str(path), "--html", str(file)]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_page_has_every_number_and_escapes_names(tmp_path: Path) -> None:
    path, file = tmp_path / "<b>a & 'b'\n\x1b[31m", tmp_path / "page.html"
    with mpqueue.Queue(path, segment_size=1 << 16, durability="sync") as q:
        q.put_many([b"x" * 3000] * 40, atomic=False)
        with q.consumer() as c:
            c.take()
            c.skip()
            held = c.reserve_many(3)
            done = written(path, file)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            now = q.stats()
            c.ack_many(held)
    text = file.read_text()
    found = Page(text)
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "&lt;b&gt;a &amp; &#x27;b&#x27;\\x0a\\x1b[31m" in text
    for name in ("items_enqueued", "reserved_bytes", "depth", "items_skipped", "segments"):
        assert found.rows[name] == f"{getattr(now, name):,}", name
    assert set(found.rows) == {n for n in now._asdict() if n != "sync_duration_seconds"}
    assert found.seen.count("rect") > now.segments + now.kept_segments


def test_empty_and_closed_queues_have_a_page(tmp_path: Path) -> None:
    path, file = tmp_path / "spool", tmp_path / "page.html"
    mpqueue.Queue(path).close()
    assert written(path, file).returncode == 0
    Page(file.read_text())


def test_what_cannot_be_read_makes_no_page(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = written(tmp_path / "none", file)
    assert done.returncode == 7
    assert "no queue here" in done.stderr
    assert not file.exists()
    mpqueue.Queue(tmp_path / "spool").close()
    done = written(tmp_path / "spool", tmp_path)  # a directory cannot be replaced
    assert done.returncode == 2
