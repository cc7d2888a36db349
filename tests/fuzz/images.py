"""Unpacks the golden images of tests/format for the fuzzer, and writes a first corpus.

Usage: python images.py DIRECTORY: makes images/ and corpus/ in it.
"""

from __future__ import annotations

import random
import sys
import tarfile
from pathlib import Path

V1 = Path(__file__).resolve().parent.parent / "format" / "v1"
FLAGS = (0x00, 0x20, 0x40, 0x60, 0x80, 0xC0)  # repaired; another boot; used before
EDIT = 12
FOUND = (  # inputs that once broke something: a loss of 2**60 items, walked one by one
    "22c951d6aabac2b43b13f28105",
    "01c073ced71b0aa2e240815ae6",
    "40c00d387dd45ce301ffff99ab",
)


def unpack(target: Path) -> int:
    """One directory per image; returns how many."""
    images = sorted(V1.glob("*.tar.xz"))
    for packed in images:
        folder = target / packed.name.partition(".")[0]
        with tarfile.open(packed) as tar:
            for member in tar.getmembers():
                source = tar.extractfile(member)
                if source is None:
                    continue
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read())
    return len(images)


def plant(corpus: Path, images: int) -> None:
    """Every image with every flag: untouched, and with an edit of each kind."""
    corpus.mkdir(exist_ok=True)
    choices = random.Random(1)
    for image in range(images):
        for flags in FLAGS:
            head = bytes([image | flags])
            (corpus / f"whole-{image}-{flags}").write_bytes(head)
            for kind in range(16):
                edit = bytes([kind | 0xC0]) + choices.randbytes(EDIT - 1)
                (corpus / f"edit-{image}-{flags}-{kind}").write_bytes(head + edit)
    for number, found in enumerate(FOUND):
        (corpus / f"found-{number}").write_bytes(bytes.fromhex(found))


if __name__ == "__main__":
    plant(Path(sys.argv[1]) / "corpus", unpack(Path(sys.argv[1]) / "images"))
