"""Makes the golden images of the current on-disk format: `python tests/format/make_golden.py`.

Each image is a small queue directory as the core left it, packed as v1/NAME.tar.xz, and what is in
it as v1/NAME.json. They are made once a format and never again: later versions must go on reading
them. Run it only when a new format begins.
"""

from __future__ import annotations

import base64
import io
import json
import lzma
import os
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpqueue
from mpqueue import codecs, layout
from mpqueue.reader import inspect, verify

HERE = Path(__file__).resolve().parent
SMALL: dict[str, Any] = {"segment_size": 64 * 1024, "ack_window": 64, "max_members": 4}


def plain(path: Path) -> None:
    """Items, headers, empty bodies, a batch, acks out of order, a cursor with attempts."""
    with mpqueue.Queue(path, **SMALL) as queue:
        for number in range(20):
            queue.put(b"item %d" % number)
        queue.put(b"with headers", headers={"kind": "mail", "n": "1"})
        queue.put(b"")
        queue.put_many([b"batch %d" % number for number in range(5)])
        with queue.consumer() as consumer:
            items = consumer.reserve_many(12)
            items[3].nack()
            consumer.ack_many([items[index] for index in (0, 1, 5, 7, 8)])
            again = consumer.reserve(0)
            assert again is not None
            again.nack()


def rolled(path: Path) -> None:
    """Many segments, the oldest ones reclaimed, an item larger than a segment among them."""
    with mpqueue.Queue(path, **SMALL) as queue:
        for number in range(40):
            queue.put(bytes([number]) * 9000)
        queue.put(b"big" * 50000)
        for number in range(10):
            queue.put(bytes([number]) * 9000)
        with queue.consumer() as consumer:
            for _ in range(30):
                consumer.take(0)
            consumer.checkpoint()


def gaps(path: Path) -> None:
    """A claim of a producer that was killed in the middle of a put."""
    options = {**SMALL, "durability": "none"}
    body = b"never seen whole " * 1500
    for _ in range(1000):
        with mpqueue.Queue(path, **options) as queue:
            queue.put(b"first")
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                queue.put(body)
                os.write(writing, b"!")
                for _ in range(8):
                    queue.put(body)
                signal.pause()
            os.read(reading, 1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
            queue.put(b"last")
        if verify(path).counts.gaps:
            return
        mpqueue.destroy(path)
    raise SystemExit("no kill hit the middle of a put")


def sealed(path: Path) -> None:
    """Sealed, with something left to drain."""
    with mpqueue.Queue(path, **SMALL) as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.seal()


def damaged(path: Path) -> None:
    """One body with a flipped bit in it."""
    plain(path)
    with inspect(path) as view:
        record = list(view.items())[4]
    with (path / layout.segment_name(record.generation)).open("r+b") as file:
        file.seek(record.offset + layout.FRAME_HEADER + 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


KEYS = {1: bytes(range(32)), 2: bytes(range(32, 64))}


def encrypted(path: Path) -> None:
    """Items of two keys, whose ids and check values are in meta."""
    for current in KEYS:
        codec = codecs.Aes("json", keys=KEYS, current=current)
        with mpqueue.Queue(path, codec=codec, **SMALL) as queue:
            queue.put({"key": current}, headers={"kind": "plain"})


def keyed(path: Path) -> None:
    """Items with keys: freed ones (their keys are in the file alone), acked, and waiting."""
    with mpqueue.Queue(path, **SMALL, key_window=16, keep_segments=0) as queue:
        for number in range(30):
            queue.put(bytes([number]) * 9000, key=f"key {number}")
        with queue.consumer() as consumer:
            for _ in range(25):
                consumer.take(0)
            consumer.checkpoint()
        queue.put(b"with both", key="last", headers={"kind": "mail"})


CASES: dict[str, Callable[[Path], None]] = {
    "plain": plain,
    "rolled": rolled,
    "gaps": gaps,
    "sealed": sealed,
    "damaged": damaged,
    "encrypted": encrypted,
    "keyed": keyed,
}


def describe(path: Path) -> dict[str, Any]:
    """What the image holds, as the reader sees it on the machine that made it."""
    report = verify(path)
    with inspect(path) as view:
        return {
            "items": [
                {
                    "seq": record.seq,
                    "id": record.id,
                    "headers": record.headers,
                    "attempts": record.attempts,
                    "length": len(record.body),
                    "body_start": base64.b64encode(record.body[:40]).decode(),
                }
                for record in view.items()
            ],
            "damaged": report.counts.damaged,
            "gaps": report.counts.gaps,
            "sealed": view.meta.sealed,
            "ack_window": view.options["ack_window"],
        }


def pack(path: Path, target: Path) -> None:
    """A tar of the directory without names, times and owners of this machine."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                info = tarfile.TarInfo(str(file.relative_to(path)))
                info.size = file.stat().st_size
                info.mode = 0o600
                tar.addfile(info, io.BytesIO(file.read_bytes()))
    target.write_bytes(lzma.compress(data.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Makes all images, or those named on the command line."""
    folder = HERE / f"v{layout.FORMAT_VERSION}"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "queue"
            CASES[name](path)
            expected = describe(path)
            pack(path, folder / f"{name}.tar.xz")
            (folder / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")
            mpqueue.destroy(path)
        print(name, (folder / f"{name}.tar.xz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
