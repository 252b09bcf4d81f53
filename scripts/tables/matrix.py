"""Run the reference workloads with many releases of torch and Python, and write measurements/matrix.md.

    python scripts/tables/matrix.py [--torch "2.9.1 2.15.0"] [--discard]

Each release gets an environment of its own under .venvs (several GiB each; `--discard` removes each after
use), made by uv, which also fetches a Python that is not installed. With `--torch`, the other columns stay as
they were.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
from dry_runs import ROOT, STEPS, Case, dry_run, mebibytes, versions

CASES = ROOT / "scripts/tables/matrix.toml"
WORKLOADS = ROOT / "workloads"
ENVIRONMENTS = ROOT / ".venvs"
TARGET = ROOT / "measurements/matrix.md"
RESULTS = ROOT / "measurements/matrix.json"


@dataclass(frozen=True)
class Release:
    """A torch, with a Python."""

    torch: str
    torchvision: str
    python: str

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / f"torch-{self.torch}-python-{self.python}"

    def interpreter(self) -> str:
        """Return the environment's Python; create the environment if it does not exist."""
        python = self.environment / "bin/python"
        if not python.exists():
            make = ["uv", "venv", "--quiet", "--clear", "--python", self.python, str(self.environment)]
            packages = [f"torch=={self.torch}", f"torchvision=={self.torchvision}"]
            # Inductor of older releases imports setuptools without asking for it.
            packages += ["numpy", "transformers", "accelerate", "setuptools"]
            install = ["uv", "pip", "install", "--quiet", "--python", str(python), *packages]
            try:
                for command in (make, install):
                    subprocess.run(command, check=True)
            except subprocess.CalledProcessError:
                shutil.rmtree(self.environment, ignore_errors=True)
                raise
        return str(python)


def read() -> tuple[list[Release], list[Case]]:
    found = tomllib.loads(CASES.read_text())
    return [Release(**each) for each in found["release"]], [Case(**each) for each in found["workload"]]


def column(release: Release, cases: list[Case]) -> dict[str, Any]:
    """Return the results of one release for every workload."""
    python = release.interpreter()
    results: dict[str, Any] = {}
    installed = versions(python, ["torch", "transformers"])
    for case in cases:
        outcome = dry_run(case, python, WORKLOADS)
        report = outcome.report
        results[case.what] = {
            "problems": outcome.problems,
            "peak": report["peak"] if outcome.whole else None,
            "parameters": report["at_peak"]["by_category"]["parameters"] if outcome.whole else None,
        }
        installed["torch"] = report.get("torch", installed["torch"])
        print(
            f"torch {release.torch}: {case.what}: {'; '.join(outcome.problems) or 'as it should be'}",
            flush=True,
        )
        if outcome.problems:
            print(outcome.output[-3000:], file=sys.stderr, flush=True)
    return {"versions": installed, "results": results}


def settle(columns: dict[str, Any], cases: list[Case]) -> None:
    """The same model has the same parameters in every release."""
    for case in cases:
        results = [each["results"][case.what] for each in columns.values() if case.what in each["results"]]
        counts = [each["parameters"] for each in results if each["parameters"] and not each["problems"]]
        usual = max(set(counts), key=counts.count, default=None)
        for each in results:
            if not each["problems"] and each["parameters"] != usual:
                each["problems"].append(f"parameters {each['parameters']:,} bytes, elsewhere {usual:,}")


def cell(result: dict[str, Any] | None, case: Case, release: str) -> str:
    if result is None:
        return ""
    if result["problems"]:
        known = case.as_on_the_card
        return f"fails: {known[1]}" if known and known[0] == release else "; ".join(result["problems"])
    return mebibytes(result["peak"]["allocated"])


def page(columns: dict[str, Any], releases: list[Release], cases: list[Case]) -> str:
    """measurements/matrix.md."""
    shown = [each for each in releases if each.torch in columns]
    head = " | ".join(f"{columns[each.torch]['versions']['torch']}" for each in shown)
    pythons = " | ".join(columns[each.torch]["versions"]["python"] for each in shown)
    transformers = " | ".join(columns[each.torch]["versions"]["transformers"] for each in shown)
    rows = []
    good = total = 0
    for case in cases:
        results = [columns[each.torch]["results"].get(case.what) for each in shown]
        total += sum(each is not None for each in results)
        good += sum(each is not None and not each["problems"] for each in results)
        rows.append(
            f"| {case.what} | {' | '.join(cell(result, case, each.torch) for result, each in zip(results, shown, strict=True))} |"
        )
    table = "\n".join(rows)
    return f"""# Workloads run with several PyTorch releases

Written by `make matrix` ({datetime.date.today()}). Each workload ran for {STEPS} steps on a virtual GPU with each release. A cell is the peak of
allocated memory in MiB; where it differs between releases, PyTorch itself changed. {good} of {total} cells are as expected: all
steps ran, no CUDA call was refused, and the model's parameters take as many bytes as in the other releases. The command lines
are in [matrix.toml](../scripts/tables/matrix.toml).

| torch | {head} |
|---|{"---|" * len(shown)}
| Python | {pythons} |
| transformers | {transformers} |
{table}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="", help="only these releases")
    parser.add_argument("--discard", action="store_true", help="remove each environment after use")
    args = parser.parse_args()
    releases, cases = read()
    wanted = args.torch.split() or [each.torch for each in releases]
    unknown = set(wanted) - {each.torch for each in releases}
    if unknown:
        sys.exit(f"{CASES.relative_to(ROOT)} has no torch {', '.join(sorted(unknown))}: add it there")
    columns = json.loads(RESULTS.read_text()) if args.torch and RESULTS.is_file() else {}
    for release in releases:
        if release.torch not in wanted:
            continue
        columns[release.torch] = column(release, cases)
        settle(columns, cases)
        RESULTS.write_text(json.dumps(columns, indent=1) + "\n")
        TARGET.write_text(page(columns, releases, cases))
        if args.discard:
            shutil.rmtree(release.environment)
    bad = any(each["problems"] for name in wanted for each in columns[name]["results"].values())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
