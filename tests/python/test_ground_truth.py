"""Measurements on real GPUs, rehearsed: a virtual GPU on both sides gives equal figures, and false files are
refused.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import ROOT, memfit
from script_modules import load_scripts

compare, events, product, training = load_scripts("scripts/gpu", "compare", "events", "product", "training")

MEASURE = ROOT / "scripts/gpu/measure.py"
# A training, and one that runs out of memory.
CASES = "perceptron_fp32 grows_until_memory_runs_out"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that a virtual T4 gave."""
    target = tmp_path_factory.mktemp("ground") / "truth.json"
    command = [
        memfit(),
        "run",
        "--gpu",
        "t4",
        "--steps",
        "0",
        "--no-prove",
        "--",
        sys.executable,
        str(MEASURE),
    ]
    done = subprocess.run(
        [*command, "-o", str(target), "--only", CASES], capture_output=True, text=True, check=False
    )
    assert target.exists(), done.stderr
    return target


def test_a_virtual_gpu_agrees_with_itself(measured: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/gpu/compare.py"), str(measured), "--memfit", memfit()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ") and line.endswith("| equal |")]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == CASES.split()
    # The card was found by the name that PyTorch gives it.
    assert "beside the virtual `t4`" in done.stdout


def test_a_file_has_what_was_counted_and_nothing_of_the_machine(measured: Path) -> None:
    found = json.loads(measured.read_text())
    assert compare.wrong_shape(found) == []
    assert compare.implausible(found) == []
    training, full = (found["cases"][name] for name in (CASES.split()[0], CASES.split()[1]))
    # Parameters, gradients and two states of AdamW.
    parameters = 4 * (1024 * 8192 + 8192 + 8192 * 1024 + 1024)
    assert training["allocated"] > 4 * parameters
    assert training["step_ms"] > 0
    assert full["ooms"] == 1
    # All but what one more request and the context take.
    assert full["reserved"] > found["card"]["capacity"] - 2 * 2**30
    text = measured.read_text()
    assert str(Path.home()) not in text
    assert str(ROOT) not in text


def spoiled(change: Any) -> dict[str, Any]:
    """Return a whole file with one change."""
    case = {
        "allocated": 1024 * 1024,
        "reserved": 2 * 1024 * 1024,
        "requested": 1024 * 1024 - 8,
        "allocations": 3,
        "retries": 0,
        "ooms": 0,
        "in_use": 300 * 1024 * 1024,
        "reserved_at_end": 2 * 1024 * 1024,
        "step_ms": 1.5,
    }
    found = {
        "schema": compare.SCHEMA,
        "date": "2026-01-01",
        "card": {"name": "Tesla T4", "capacity": 15 * 2**30, "capability": "7.5", "multiprocessors": 40},
        "software": {
            "torch": "2.15.0",
            "cuda": "13.2",
            "cudnn": 92000,
            "python": "3.11.7",
            "system": "Linux x86_64",
            "allocator": "",
        },
        "cases": {"one": case, "two": copy.deepcopy(case)},
    }
    change(found)
    return found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found.update(schema="other/1"), "`schema` is not"),
        (lambda found: found["card"].pop("capacity"), "`card.capacity`"),
        (lambda found: found["software"].update(cudnn="9"), "`software.cudnn`"),
        (lambda found: found.update(cases={}), "`cases` is empty"),
        (lambda found: found["cases"]["two"].update(reserved="much"), "two: `reserved`"),
        (lambda found: found["cases"]["one"].update(allocated=3 * 2**20), "not in this order"),
        (lambda found: found["cases"]["one"].update(requested=0), "not in this order"),
        (lambda found: found["cases"]["one"].update(allocated=2**20 + 1), "not sizes of PyTorch's"),
        (lambda found: found["cases"]["two"].update(in_use=2**20), "the driver saw less"),
        (lambda found: found["cases"]["two"].update(step_ms=0.0), "takes no time"),
    ],
)
def test_a_false_file_is_refused_with_the_reason(change: Any, reason: str, tmp_path: Path) -> None:
    whole, changed = spoiled(lambda _found: None), spoiled(change)
    assert compare.wrong_shape(whole) == []
    assert compare.implausible(whole) == []
    file = tmp_path / "truth.json"
    file.write_text(json.dumps(changed))
    command = [sys.executable, str(ROOT / "scripts/gpu/compare.py"), str(file), "--memfit", memfit()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_difference_is_judged_by_its_figure() -> None:
    real = spoiled(lambda _found: None)["cases"]["one"]
    assert compare.verdict(real, dict(real)) == "equal"
    assert compare.verdict(real, real | {"reserved": int(real["reserved"] * 1.015)}) == "close"
    assert compare.verdict(real, real | {"allocated": real["allocated"] - 512}) == "close"
    assert compare.verdict(real, real | {"reserved": int(real["reserved"] * 1.03)}) == "**reserved**"
    assert compare.verdict(real, real | {"allocated": int(real["allocated"] * 0.98)}) == "**allocated**"
    assert compare.verdict(real, {"error": "status 1"}) == "**failed here**"
    assert compare.verdict({"error": "status 1"}, real) == "not measured"


@pytest.mark.parametrize(("number", "version"), [(91900, "9.19.0"), (92000, "9.20.0"), (8907, "8.9.7")])
def test_a_cudnn_version_has_dots(number: int, version: str) -> None:
    assert compare.cudnn_version(number) == version


def entry(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size}


def test_histories_are_compared_by_their_blocks_and_not_by_addresses() -> None:
    def history(first: int, second: int, freed: int) -> list[str]:
        taken = [entry("segment_alloc", first, 2), entry("alloc", first, 1), entry("alloc", second, 1)]
        freeing = [entry("free_requested", freed, 1), entry("free_completed", freed, 1)]
        return events.events({"device_traces": [[*taken, *freeing]]})

    real = history(100, 200, 100)
    assert real == ["s 2", "a 1", "a 1", "f 0 1"]
    assert events.row("same", real, history(7, 9, 7)) == "| same | 4 | 4 | all | 100.00% |"
    # Another block is freed; an event is missing.
    assert events.row("other", real, history(7, 9, 9)) == "| other | 4 | 4 | 3 | 100.00% |"
    assert events.row("short", real, real[:2]) == "| short | 4 | 2 | 2 | 50.00% |"


def test_what_memfit_says_on_two_gpus_is_compared_case_by_case() -> None:
    def report(**cases: int) -> dict[str, Any]:
        peaks = {name: {"peak": {"allocated": size, "reserved": 2 * size}} for name, size in cases.items()}
        return {"card": "a GPU", "gpu": "t4", "torch": "2.11.0", "cases": peaks}

    text = product.page(report(a=1000, b=1000, c=1), report(a=1000, b=1010))
    assert "- allocated: 1 of 2 are equal; median difference 0.50%, worst 1.00%" in text
    rows = [line for line in text.splitlines() if line.startswith(("| a |", "| b |", "| c |"))]
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == ["equal", "1.00%", ""]


def test_the_size_of_micro_batches_is_a_key_of_a_plan() -> None:
    text = product.plan({"micro-batch": 2, "sdpa": True})
    assert text.startswith('version = 1\nmicro_batch = 2\n\n[[lever]]\nname = "sdpa"\nvalue = true\n')


def measured_file(name: str) -> Any:
    return json.loads((ROOT / "measurements" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (
            "ground-truth-h200",
            lambda: compare.page(
                measured_file("ground-truth-h200"), measured_file("ground-truth-h200-virtual"), "h200"
            ),
        ),
        (
            "product-on-gpu",
            lambda: product.page(measured_file("product-h200"), measured_file("product-virtual")),
        ),
        ("training-on-gpu", lambda: training.page(measured_file("training-on-gpu"))),
    ],
)
def test_a_page_says_what_was_measured(name: str, written: Callable[[], str]) -> None:
    assert (ROOT / "measurements" / f"{name}.md").read_text() == written()
