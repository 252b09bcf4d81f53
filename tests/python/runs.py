"""Runs `memfit run` for the end-to-end tests: one run per question, shared by all tests that need its
answer.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "workloads"
GIB = 1024**3
MIB = 1024**2

# The categories of a block's tensors; the other two categories belong to no tensor.
TENSORS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "inputs",
    "buffers",
    "workspace",
    "temporary",
    "unknown",
)
OVERHEAD = ("rounding", "fragmentation")


def memfit() -> str:
    """Return the command named by MEMFIT_COMMAND, next to this interpreter, or on `PATH`."""
    beside = Path(sys.executable).with_name("memfit")
    found = os.environ.get("MEMFIT_COMMAND") or (str(beside) if beside.is_file() else shutil.which("memfit"))
    if not found:
        raise RuntimeError("memfit is not installed here: `make test` installs it")
    return found


@dataclass(frozen=True)
class Run:
    """The result of one `memfit run --format json`."""

    status: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.stdout)

    @property
    def peak(self) -> dict[str, int]:
        return self.report["peak"]

    @property
    def categories(self) -> dict[str, int]:
        return self.report["at_peak"]["by_category"]


def invoke(
    arguments: list[str], cwd: Path = WORKLOADS, env: dict[str, str] | None = None, timeout: float = 300
) -> Run:
    """Run the command line unchanged."""
    done = subprocess.run(
        [memfit(), *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


@functools.cache
def run(
    command: str,
    gpu: str = "a100-80gb",
    memory: int | None = None,
    options: str = "",
    python: str = sys.executable,
) -> Run:
    """Dry-run `python COMMAND` in the workloads' folder; the same question is asked once in a session."""
    # Remedies have their own tests; each proof is another run.
    arguments = ["run", "--gpu", gpu, "--format", "json", "--no-prove", *options.split()]
    if memory is not None:
        arguments += ["--memory", f"{memory // MIB}MiB"]
    return invoke([*arguments, "--", python, *command.split()])


def completed(command: str, **settings: Any) -> Run:
    """The same, for a run that must fit; its report is held to what is true of every report."""
    answer = run(command, **settings)
    assert answer.status == 0, (
        f"{command}: status {answer.status}\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
    )
    hold_to_contract(answer.report)
    assert answer.report["verdict"] == "fits"
    return answer


def hold_to_contract(report: dict[str, Any]) -> None:
    """Check the properties of every report that has a peak, whatever the verdict."""
    assert report["schema"] == "memfit.run/1"
    hold_to_shapes(report)
    peak, at_peak, device = report["peak"], report["at_peak"], report["device"]
    assert 0 < peak["allocated"] <= peak["reserved"] <= peak["device"] <= peak["device_upper"]
    if report["verdict"] == "fits":
        assert peak["device_upper"] <= device["capacity"]
        assert report["oom"] is None or report["oom"]["caught"]
    else:
        assert peak["device"] <= device["capacity"]

    categories = at_peak["by_category"]
    assert set(categories) == {*TENSORS, *OVERHEAD}
    assert all(value >= 0 for value in categories.values()), categories
    assert sum(categories.values()) == at_peak["reserved"]
    assert sum(categories[name] for name in TENSORS) + categories["rounding"] == at_peak["allocated"]
    assert at_peak["allocated"] == peak["allocated"]
    assert at_peak["reserved"] <= peak["reserved"]

    outside = report["outside"]
    assert peak["reserved"] + outside["context"] + outside["libraries"] <= peak["device_upper"]
    assert len(report["ranks"]) == device["count"]
    assert max(rank["device"] for rank in report["ranks"]) == peak["device"]
    assert sum(module["bytes"] for module in at_peak["modules"]) <= at_peak["allocated"]


def hold_to_shapes(report: dict[str, Any]) -> dict[str, Any]:
    """Check that a report follows its schema, and that the Python results have each of its fields and no
    other; return the report.
    """
    # The environments of `make integrations` run other questions, and have no validator.
    from contract import check_document
    from memfit import results
    from memfit._api.decode import decode, encode

    check_document(report)
    verb = report["schema"].removeprefix("memfit.").removesuffix("/1")
    read = encode(decode(getattr(results, f"{verb.capitalize()}Report"), report))
    assert without_absent(read) == without_absent(report)
    return report


def without_absent(value: Any) -> Any:
    """Return JSON without its nulls: the command leaves some of them out."""
    if isinstance(value, dict):
        return {name: without_absent(each) for name, each in value.items() if each is not None}
    return [without_absent(each) for each in value] if isinstance(value, list) else value


def parameter_bytes(model: Any) -> int:
    """Bytes of a model's parameters, from the model itself."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
