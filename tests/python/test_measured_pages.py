"""Pages of measurements whose results are kept as JSON: the committed page is what its script makes of them.

So a page cannot keep an old wording, and a name that changed in a script but not in its results is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from script_modules import load_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "measurements"


def function(name: str) -> Callable[[ModuleType, Any, Path], str]:
    """The page is what this function of the script returns."""
    return lambda module, results, _: getattr(module, name)(results)


def written(name: str) -> Callable[[ModuleType, Any, Path], str]:
    """The page is what this function of the script writes to `TABLE`."""

    def make(module: ModuleType, results: Any, folder: Path) -> str:
        module.TABLE = folder / "page.md"  # type: ignore[attr-defined]
        getattr(module, name)(results)
        return (folder / "page.md").read_text()

    return make


def sanitizers(module: ModuleType, results: Any, _: Path) -> str:
    return module.page([module.Result(**each) for each in results])


@pytest.mark.parametrize(
    ("page", "script", "make"),
    [
        ("ablation", "scripts/accuracy/ablation_table.py", function("table")),
        ("throughput", "scripts/accuracy/throughput.py", function("page")),
        ("consumer-speed", "scripts/accuracy/consumer_speed.py", function("page")),
        ("datacenter-speed", "scripts/accuracy/datacenter_speed.py", function("page")),
        ("cards", "scripts/cards/measure.py", function("table")),
        ("cards-published", "scripts/cards/published.py", function("table")),
        ("plan", "scripts/plan/reference.py", function("page")),
        ("plan-ablation", "scripts/plan/ablation.py", written("write")),
        ("differential", "scripts/replay/differential.py", function("page")),
        ("recorded-releases", "scripts/replay/releases.py", function("page")),
        ("explain", "scripts/explain/held_out.py", function("page")),
        ("gradients", "scripts/explain/gradients.py", function("page")),
        ("data", "benches/data.py", function("written")),
        ("recordings", "benches/recordings.py", function("page")),
        ("fuzz", "scripts/fuzz_hours.py", function("page")),
        ("mutants", "scripts/mutants.py", written("write_table")),
        ("sanitizers", "scripts/sanitizers/run.py", sanitizers),
    ],
)
def test_a_page_is_what_its_results_give(
    page: str, script: str, make: Callable[[ModuleType, Any, Path], str], tmp_path: Path
) -> None:
    results = json.loads((PAGES / f"{page}.json").read_text())
    expected = make(load_script(script), results, tmp_path)

    def same_machine(text: str) -> str:
        return re.sub(r"Python \d[\d.]*\d|\(\d+ cores\)", "", text).rstrip()

    assert same_machine((PAGES / f"{page}.md").read_text()) == same_machine(expected)
