"""Goal: flatness bites. Method: samples by hand that grow, and that do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flat import SLACK, Flatness, sample, sample_queue


def _flatness(name: str, values: list[int]) -> Flatness:
    flatness = Flatness("process")
    for value in values:
        flatness.add({name: value})
    return flatness


@pytest.mark.parametrize("name", sorted(SLACK))
def test_what_grows_is_named(name: str) -> None:
    step = SLACK[name] // 4 + 1
    growing = _flatness(name, [step * i for i in range(40)]).complaints()
    assert len(growing) == 1
    assert f"{name} grew" in growing[0]


@pytest.mark.parametrize("name", sorted(SLACK))
def test_what_swings_is_flat(name: str) -> None:
    assert _flatness(name, [i % (SLACK[name] * 2 + 2) for i in range(2000)]).complaints() == []


def test_too_few_samples_prove_nothing() -> None:
    assert "only 3 samples" in _flatness("files", [1, 1, 1]).complaints()[0]


def test_a_living_process_has_samples(tmp_path: Path) -> None:
    before = sample(os.getpid())
    assert before["mappings"] > 0
    assert before["resident KiB"] > 0
    with open(tmp_path / "file", "w"):
        assert sample(os.getpid())["descriptors"] == before["descriptors"] + 1
    assert sample_queue(tmp_path) == {"files": 1}
    assert sample(2**22 + 1) == {}
