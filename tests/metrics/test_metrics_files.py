"""Goal: page, alert rules and dashboard speak of families that exist, in expressions that parse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mpqueue import metrics

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
RULES = DOCS / "prometheus-rules.yml"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "histogram": ("_bucket", "_count", "_sum"),
}
NAMES = {family.name + end for family in metrics.FAMILIES for end in SUFFIXES[family.kind]}


def expressions() -> list[str]:
    """Those of the dashboard, with Grafana's variables filled in."""
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    found = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            text = str(target["expr"]).replace("$queue", ".*")
            found.append(re.sub(r"\$__\w+", "5m", text))
    return found


def unknown(text: str) -> set[str]:
    return set(re.findall(r"\bmpqueue_\w+", text)) - NAMES


def test_the_page_lists_every_family_as_it_is() -> None:
    rows = re.findall(
        r"^\| `(mpqueue_\w+)` \| (\w+) \| (.+) \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    assert rows == [
        (family.name + SUFFIXES[family.kind][0].removesuffix("_bucket"), family.kind, family.help)
        for family in metrics.FAMILIES
    ]


def test_the_page_names_everything_public() -> None:
    page = (DOCS / "metrics.md").read_text()
    assert [name for name in metrics.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_rules_and_dashboard_use_families_that_exist() -> None:
    assert unknown("mpqueue_nonsense_total and mpqueue_up") == {"mpqueue_nonsense_total"}
    queries = re.sub(r"(?m)^ *(summary|description):.*$", "", RULES.read_text())
    assert len(re.findall(r"\bmpqueue_\w+", queries)) > 10
    assert unknown(queries) == set()
    assert len(expressions()) > 10
    assert unknown(" ".join(expressions())) == set()
    assert not [text for text in expressions() if "$" in text]


def test_panels_of_the_dashboard_fit_and_do_not_overlap() -> None:
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_promtool_accepts_rules_and_expressions(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here; it comes with Prometheus")
    rules = [
        {"record": f"dashboard:expression:{number}", "expr": text}
        for number, text in enumerate(expressions())
    ]
    board = tmp_path / "dashboard.yml"  # JSON is YAML
    board.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", RULES, board], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
