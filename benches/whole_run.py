"""Measures the cost of a whole dry run of the example beyond its imports.

    python benches/whole_run.py

Both are measured alternately, several times; the difference of the medians is printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/classifier/train.py"


def memfit() -> str:
    """Return the command next to this interpreter, or on `PATH`."""
    beside = Path(sys.executable).with_name("memfit")
    found = str(beside) if beside.is_file() else shutil.which("memfit")
    if not found:
        sys.exit("memfit is not installed here")
    return found


def seconds(command: list[str]) -> tuple[float, float]:
    """Return wall time and CPU time in seconds, of the command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """Return the median seconds of the imports alone and of the run."""
    imports = [sys.executable, "-c", "import torch, torchvision"]
    dry_run = [memfit(), "run", "--gpu", "rtx-4090", "--", sys.executable, str(EXAMPLE)]
    seconds(imports)  # the first import reads the libraries from disk
    imported, ran = [], []
    for _ in range(rounds):
        imported.append(seconds(imports))
        ran.append(seconds(dry_run))
    found: dict[str, float] = {"rounds": rounds}
    for index, kind in enumerate(("clock", "processor")):
        before, after = (statistics.median(pair[index] for pair in pairs) for pairs in (imported, ran))
        found |= {f"imports_{kind}_s": before, f"run_{kind}_s": after, f"more_{kind}_s": after - before}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    print("whole run: " + json.dumps(measure(parser.parse_args().rounds)))
