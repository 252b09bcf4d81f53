"""Runs one training script on a virtual GPU, and checks its report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024**2
STEPS = 3

# The prefix of output lines of scripts in workloads/libraries with the bytes that follow from shapes and
# formats.
MARK = "by arithmetic: "
# Tolerances of a category: the sums leave out scalars such as Adam's step counters.
RELATIVE, ABSOLUTE = 0.001, 64 * 1024


@dataclass(frozen=True)
class Case:
    """One command line on one kind of card."""

    what: str
    run: str
    gpu: str = "a100-80gb"
    cards: int = 1
    env: dict[str, str] = field(default_factory=dict)
    trains: bool = True
    # A release of torch, and why it fails there on a real card as well.
    as_on_the_card: tuple[str, str] | None = None
    # Started once for each card by torchrun; otherwise the script starts its own processes.
    torchrun: bool = False

    @property
    def card(self) -> str:
        return f"{self.gpu}:{self.cards}" if self.cards > 1 else self.gpu

    def command(self, python: str, folder: Path) -> list[str]:
        """The command line behind `memfit run … --`."""
        script, *arguments = self.run.split()
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.cards}"]
        return [python, *(torchrun if self.torchrun else []), str(folder / script), *arguments]


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    case: Case
    report: dict[str, Any]
    expected: dict[str, int]
    output: str

    @property
    def whole(self) -> bool:
        """`True` if the run has a usable peak."""
        return bool(self.report.get("peak") and self.report.get("at_peak"))

    @property
    def problems(self) -> list[str]:
        """Return what is wrong with this case; empty if nothing is."""
        report = self.report
        if not report:
            return ["no report"]
        found = []
        if report["verdict"] not in ("fits", "unknown"):
            found.append(f"verdict: {report['verdict']}")
        exception = report["script"]["exception"]
        if exception:
            found.append(f"{exception['type']}: {exception['message'].strip().splitlines()[0][:200]}")
        if self.case.trains and report["steps"] < STEPS:
            found.append(f"{report['steps']} steps of {STEPS}")
        found += [f"{each['call']} is refused" for each in report["fidelity"]["unmodelled"]]
        if self.whole:
            seen = report["at_peak"]["by_category"]
            found += [
                f"{name}: {seen[name]:,} bytes, by arithmetic {wanted:,}"
                for name, wanted in self.expected.items()
                if abs(seen[name] - wanted) > ABSOLUTE + RELATIVE * wanted
            ]
        return found

    @property
    def assumptions(self) -> list[str]:
        """The values that the device had to assume."""
        return [each["call"] for each in self.report.get("fidelity", {}).get("values", [])]


def memfit() -> str:
    """Return the command named by MEMFIT_COMMAND, next to this interpreter, or on `PATH`."""
    beside = Path(sys.executable).with_name("memfit")
    found = os.environ.get("MEMFIT_COMMAND") or (str(beside) if beside.is_file() else shutil.which("memfit"))
    if not found:
        sys.exit("memfit is not installed here: `make demo` installs it")
    return found


def dry_run(case: Case, python: str, folder: Path) -> Outcome:
    """Run `case` with a script from `folder` and the interpreter `python`."""
    command = [memfit(), "run", "--gpu", case.card, "--steps", str(STEPS), "--format", "json"]
    command += ["--show-output", "--timeout", "10m", "--", *case.command(python, folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **case.env}, capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout) if done.stdout.lstrip().startswith("{") else {}
    said = [line.split(MARK, 1)[1] for line in done.stderr.splitlines() if MARK in line]
    return Outcome(case, report, json.loads(said[0]) if said else {}, done.stderr)


def versions(python: str, packages: list[str]) -> dict[str, str]:
    """Return the versions of installed packages, and the interpreter's own under `python`."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]} | {'python': platform.python_version()}))"
    )
    return json.loads(subprocess.check_output([python, "-c", code, *packages], text=True))


def mebibytes(value: int) -> str:
    return f"{value / MIB:,.1f}"
