"""Compare the virtual card with the real one of its kind, workload by workload.

python scripts/gpu/ground_truth.py --gpu NAME [--only WORDS] [--rehearse]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1024**2
METRICS = ("allocated", "reserved")


@dataclass(frozen=True)
class Case:
    """One workload with its arguments."""

    command: str
    upper_bound: bool


@dataclass(frozen=True)
class Outcome:
    """The counts of both sides; None if a side failed."""

    case: Case
    real: dict | None
    virtual: dict | None

    def error(self, metric: str) -> float | None:
        if self.real is None or self.virtual is None:
            return None
        return self.virtual[metric] / self.real[metric] - 1


def cases() -> list[Case]:
    lines = (line.strip() for line in (HERE / "cases.txt").read_text().splitlines())
    wanted = [line for line in lines if line and not line.startswith("#")]
    return [Case(line.removeprefix("~ "), line.startswith("~ ")) for line in wanted]


def memfit() -> str:
    beside = Path(sys.executable).with_name("memfit")
    found = str(beside) if beside.is_file() else shutil.which("memfit")
    if not found:
        sys.exit("memfit is not installed here")
    return found


def measured(prefix: list[str], case: Case) -> dict | None:
    """Run the case behind `prefix`, and read what it counted."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "counted.json"
        script, *arguments = case.command.split()
        command = [*prefix, sys.executable, str(HERE / "measure.py"), str(target)]
        command += [str(ROOT / "workloads" / script), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not target.exists():
            print(f"    no measurement (status {done.returncode})\n{done.stderr[-1500:]}", file=sys.stderr)
            return None
        return json.loads(target.read_text())


def verdict(outcome: Outcome) -> str:
    error = outcome.error("reserved")
    if error is None:
        return "failed"
    if outcome.case.upper_bound:
        return "bound holds" if error >= -0.001 else "**below the bound**"
    within = abs(outcome.error("allocated") or 0) <= 0.01 and abs(error) <= 0.02
    return "hit" if within else "**miss**"


def row(outcome: Outcome) -> str:
    cells = [f"`{outcome.case.command}`"]
    for metric in METRICS:
        sides = (outcome.real, outcome.virtual)
        cells += [f"{side[metric] / MIB:,.1f}" if side else "-" for side in sides]
        error = outcome.error(metric)
        cells += [f"{error:+.2%}" if error is not None else "-"]
    return "| " + " | ".join([*cells, verdict(outcome)]) + " |"


def page(outcomes: list[Outcome], gpu: str, rehearsed: bool) -> str:
    both = [o for o in outcomes if o.real and o.virtual]
    facts = both[0].real if both else {}
    outside = [o.real["outside"] / MIB for o in both]
    lying = (
        f"{statistics.median(outside):.0f} MiB (median), {min(outside):.0f} to {max(outside):.0f}"
        if outside
        else "-"
    )
    sizes = "| workload | allocated, real | virtual | error | reserved, real | virtual | error | |"
    head = f"{sizes}\n|---|---|---|---|---|---|---|---|"
    title = (
        "A rehearsal: the virtual card on both sides"
        if rehearsed
        else f"{facts.get('card', gpu)}: real and virtual"
    )
    return f"""# {title}

Written by `python scripts/gpu/ground_truth.py --gpu {gpu}`
({datetime.date.today()}; torch {facts.get("torch")}, cuDNN {facts.get("cudnn")}).
Sizes in MiB, as PyTorch counted them in the same script on either side.
A hit is within 1 % for allocated and 2 % for reserved memory.

{head}
{chr(10).join(row(outcome) for outcome in outcomes)}

Outside the allocator at the end of each run on the real card: {lying}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", required=True, help="the card's name in memfit's catalogue")
    parser.add_argument("--only", default="", help="only the cases that hold these words")
    parser.add_argument(
        "--no-calibrate", action="store_true", help="the catalogue's figures on the virtual side"
    )
    parser.add_argument("--rehearse", action="store_true", help="the virtual card on both sides")
    args = parser.parse_args()
    virtual = [memfit(), "run", "--gpu", args.gpu, "--steps", "0", "--timeout", "900", "--"]
    if not args.no_calibrate:
        # Measurements are stored for this machine, and the runs below read them.
        rehearsal = [*virtual] if args.rehearse else []
        subprocess.run([*rehearsal, memfit(), "calibrate", "--python", sys.executable], check=True)
    outcomes = []
    for case in cases():
        if args.only not in case.command:
            continue
        print(case.command, flush=True)
        real = measured(virtual if args.rehearse else [], case)
        outcomes.append(Outcome(case, real, measured(virtual, case)))
        print("   ", row(outcomes[-1]), flush=True)
    if not args.only and not args.rehearse:
        name = args.gpu.lower().replace(" ", "-")
        (ROOT / f"measurements/ground-truth-{name}.md").write_text(page(outcomes, args.gpu, rehearsed=False))
    if args.rehearse and any(o.real is None or o.error("reserved") != 0 for o in outcomes):
        sys.exit("a virtual card does not agree with itself")


if __name__ == "__main__":
    main()
