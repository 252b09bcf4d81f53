"""The example that makes a classifier of digits smaller: its phases run, and cost what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from runs import ROOT, memfit

for library in ("sklearn", "torchao", "torch_pruning"):
    pytest.importorskip(library, reason="`make shrink` installs the libraries of requirements/shrink.txt")

EXAMPLE = ROOT / "examples" / "smaller" / "digits.py"
LINE = re.compile(
    r"^(?P<title>.+?) +(?P<score>[\d.]+)% \[(?P<low>[\d.]+)%, (?P<high>[\d.]+)%\]"
    r"(?: +(?P<difference>[+-][\d.]+) \[(?P<worst>[+-][\d.]+), (?P<best>[+-][\d.]+)\] points)?"
    r" +(?P<weights>[\d,]+) KiB(?: +(?P<peak>[\d.]+) MiB)? +[\d.]+ s$"
)


def shown(*arguments: str) -> dict[str, dict[str, str | None]]:
    """The rows of the example's table, by their titles."""
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MEMFIT_COMMAND": memfit()},
    )
    assert done.returncode == 0, done.stderr
    rows = {}
    for line in done.stdout.splitlines()[1:]:
        found = LINE.match(line)
        assert found, line
        rows[found["title"].strip()] = found.groupdict()
    return rows


def number(row: dict[str, str | None], name: str) -> float:
    value = row[name]
    assert value is not None
    return float(value.replace(",", ""))


def test_the_phases_lose_accuracy_or_bytes() -> None:
    rows = shown("--no-peaks", "--only", "prune-only", "prune", "int4", "torchao", "small", "adapt-lora")
    trained = rows["as trained"]
    assert number(trained, "score") > 90
    assert number(trained, "high") - number(trained, "low") < 4
    pruned, further = (rows[f"half of the channels{rest}"] for rest in ("", ", trained further"))
    # Half of the channels of a matrix's two sides is a quarter of it, and training makes up for the loss.
    for row in (pruned, further):
        assert 0.2 < number(row, "weights") / number(trained, "weights") < 0.35
    assert number(pruned, "best") < 0, "pruning cost nothing: the example shows no loss"
    assert number(further, "score") > number(pruned, "score")
    assert number(rows["4-bit weights"], "weights") < 0.2 * number(trained, "weights")
    small = rows["a small model, from labels"]
    assert number(small, "best") < 0 < number(small, "score") - 80
    # The trained model reads next to nothing of turned images.
    assert number(rows["turned images: LoRA"], "worst") > 50


def test_the_peak_of_a_phase_is_a_virtual_gpu_s() -> None:
    rows = shown("--only", "adapt-lora")
    weights = number(rows["as trained"], "weights") / 1024
    # AdamW keeps two numbers for each weight in addition to its gradient, and an adapter next to nothing.
    assert 4 * weights < number(rows["as trained"], "peak") < 6 * weights
    assert weights < number(rows["turned images: LoRA"], "peak") < 2.5 * weights
