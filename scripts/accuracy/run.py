"""Run the published cases on virtual cards and write measurements/published-peaks.md.

    python scripts/accuracy/run.py [--python 2.11=PATH]… [--only WORDS]

Each case is run with the nearest of the interpreters given (by the release of torch; by default the one
that runs this), on the card that its source names. Where a source names none, the case says which card is
assumed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
from measured import parse

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = ROOT / "measurements/published-peaks.md"
RESULTS = ROOT / "measurements/published-peaks.json"
MIB = 1024**2
JUDGED_FROM = (2, 11)
TOLERANCE = {"reserved": 0.02}
OTHERWISE = 0.01


NOT_REBUILT = """## Not rebuilt

Published with as good settings, but not tried here:

- kkaitlyn111/cs336-a2-systems (torch 2.6, nine figures): the code of the model is not in the repository.
- Lightning-AI/litgpt, resource tables (torch 2.1, twenty figures): a LoRA implementation of that time, half of
  the rows over weights that another library quantises.
- pytorch/ao, low-bit optimizers (torch 2.4, five figures): the optimizers are another library's.
- pytorch/torchtitan, Llama 3.1 8B (a nightly of December 2024, six figures): on 8 and 128 GPUs.
"""


@dataclass(frozen=True)
class Line:
    """One metric of one case."""

    case: dict[str, Any]
    metric: str
    published: float
    found: float | None
    torch: str
    problem: str = ""

    @property
    def error(self) -> float | None:
        return None if self.found is None else self.found / self.published - 1

    @property
    def hit(self) -> bool:
        return self.error is not None and abs(self.error) <= TOLERANCE.get(self.metric, OTHERWISE)


def release(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def torch_of(python: str) -> str:
    return subprocess.check_output(
        [python, "-c", "import torch; print(torch.__version__)"], text=True
    ).strip()


def nearest(wanted: str, pythons: dict[str, str]) -> str:
    """The version among `pythons` that is nearest to the one wanted; the newest where none is stated."""
    versions = sorted(pythons, key=release)
    if not wanted:
        return versions[-1]
    goal = release(wanted)
    return min(versions, key=lambda v: abs((release(v)[0] - goal[0]) * 100 + release(v)[1] - goal[1]))


def memfit() -> str:
    beside = Path(sys.executable).with_name("memfit")
    found = str(beside) if beside.is_file() else shutil.which("memfit")
    if not found:
        sys.exit("memfit is not installed here")
    return found


def run_case(case: dict[str, Any], version: str, python: str) -> dict[str, Any]:
    """Run one case: what it measured, in bytes, and with which torch."""
    ranks = case.get("ranks", 1)
    command = [memfit(), "run", "--gpu", case["gpu"] + (f":{ranks}" if ranks > 1 else "")]
    command += ["--steps", "0", "--timeout", "20m", "--show-output", "--", python]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(HERE / case["script"]), *case["arguments"].split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return {"torch": version, "found": parse(done.stdout + "\n" + done.stderr), "problem": ""}
    except ValueError as error:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"torch": version, "found": {}, "problem": f"{error} (status {done.returncode})"}


def lines_of(case: dict[str, Any], result: dict[str, Any]) -> list[Line]:
    """A line for each metric that was published."""
    found = result["found"]
    return [
        Line(
            case,
            metric,
            value,
            found[metric] / MIB if metric in found else None,
            result["torch"],
            result["problem"],
        )
        for metric, value in case["published"].items()
    ]


def row(line: Line) -> str:
    case = line.case
    if line.found is None or line.error is None:
        found, error, verdict = "-", "-", line.problem or "not reported"
    else:
        found, error = f"{line.found:,.2f}", f"{line.error:+.2%}"
        verdict = "hit" if line.hit else "**miss**"
    metric = line.metric.replace("_", " ")
    torch = f"{case['torch_stated']} → {line.torch}"
    card = f"{case['gpu_stated']} → {case['gpu']}"
    cells = [case["name"], metric, f"{line.published:,.2f}", found, error, verdict, torch, card]
    return f"| {' | '.join(cells)} |"


def table(lines: list[Line]) -> str:
    head = "| case | metric | published, MiB | memfit, MiB | error | | torch | card |\n" + "|---" * 8 + "|"
    return "\n".join([head, *(row(line) for line in lines)])


def unique(lines: list[Line]) -> list[dict[str, Any]]:
    """The cases of the lines, each once."""
    return list({line.case["name"]: line.case for line in lines}.values())


def page(lines: list[Line]) -> str:
    judged = [x for x in lines if x.case["torch"] and release(x.case["torch"]) >= JUDGED_FROM]
    others = [x for x in lines if x not in judged]
    remarks = [f"- {case['name']}: {case['differs']}" for case in unique(lines) if "differs" in case]
    sources = sorted({line.case["source"] for line in lines})
    hits = sum(line.hit for line in judged)
    return f"""# Published peaks, and what the virtual card says

Peaks that other people measured on real cards and published, each rebuilt from its stated settings and run
on the virtual card. Written by `python scripts/accuracy/run.py`; the cases are in
`scripts/accuracy/cases.toml`.

A hit is within 1 % for allocated memory and within 2 % for reserved memory. `stated → used` says which
torch and which card the source names, and which ones were used here.

## Measured with torch 2.11 or later: {hits} of {len(judged)} within their bounds

{table(judged)}

## Others, listed apart: measured with another torch than could be run, or one that is not stated

{sum(line.hit for line in others)} of {len(others)} within the same bounds.

{table(others)}

## Where a case differs from what its source states

{chr(10).join(remarks) or "Nowhere."}

{NOT_REBUILT}
## Sources

{chr(10).join(f"- {source}" for source in sources)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH")
    parser.add_argument(
        "--only", help="run only the cases whose name holds this; the others keep their results"
    )
    args = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in args.python)
    pythons = {torch_of(path): path for path in pythons.values()} or {
        torch_of(sys.executable): sys.executable
    }
    cases = tomllib.loads((HERE / "cases.toml").read_text())["case"]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in cases:
        if args.only and args.only not in case["name"]:
            continue
        version = nearest(case["torch"], pythons)
        results[case["name"]] = run_case(case, version, pythons[version])
        for line in lines_of(case, results[case["name"]]):
            print(row(line), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    known = [case for case in cases if case["name"] in results]
    TARGET.write_text(page([line for case in known for line in lines_of(case, results[case["name"]])]))


if __name__ == "__main__":
    main()
