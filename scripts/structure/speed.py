"""Compare the cost of a step and of a whole run of the example under two builds of memfit.

    python scripts/structure/speed.py BEFORE AFTER

Each argument is a `memfit` command with its libraries next to it. Both run the same benchmarks alternately,
so that other load slows both. The figure is the minimum CPU time over all steps and rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS = {"virtual": "without the watcher", "watched": "with the watcher"}
EXAMPLE = "`memfit run` of `examples/classifier/train.py`, whole"
MARK = "dispatch: "


def steps(memfit: Path) -> dict[str, float]:
    """Return the milliseconds of a step of each network of `benches/dispatch.py`."""
    command: list[Any] = [
        memfit,
        "run",
        "--gpu",
        "a100-80gb",
        "--steps",
        "0",
        "--show-output",
        "--timeout",
        "900",
        "--",
    ]
    command += [sys.executable, ROOT / "benches/dispatch.py", "--ways", *WAYS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in (done.stdout + done.stderr).splitlines() if MARK + "{" in line)
    found = json.loads(line.split(MARK, 1)[1])
    return {
        f"a step of {network}, {shown}": found[network][way]["least_ms"]
        for network in found
        for way, shown in WAYS.items()
    }


def example(memfit: Path) -> dict[str, float]:
    """Return the milliseconds that a run of the example takes, with all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command: list[Any] = [
        memfit,
        "run",
        "--gpu",
        "rtx-4090",
        "--",
        sys.executable,
        "examples/classifier/train.py",
    ]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {EXAMPLE: (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    least: dict[str, dict[Path, float]] = {}
    for _ in range(args.turns):
        for memfit in (args.before, args.after):
            for name, ms in (steps(memfit) | example(memfit)).items():
                of_command = least.setdefault(name, {})
                of_command[memfit] = min(ms, of_command.get(memfit, ms))
    print("| CPU time of | before | after | after / before |\n|---|--:|--:|--:|")
    for name, of_command in least.items():
        before, after = of_command[args.before], of_command[args.after]
        print(f"| {name} | {before:,.1f} ms | {after:,.1f} ms | {after / before:.2f} |")


if __name__ == "__main__":
    main()
