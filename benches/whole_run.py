"""What a whole dry run of the example costs beyond importing what it imports.

    python benches/whole_run.py

Both are measured alternately, several times; the difference of the medians is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/classifier/train.py"


def memfit() -> str:
    """The command beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("memfit")
    found = str(beside) if beside.is_file() else shutil.which("memfit")
    if not found:
        sys.exit("memfit is not installed here")
    return found


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of the imports alone and of the run."""
    imports = [sys.executable, "-c", "import torch, torchvision"]
    dry_run = [memfit(), "run", "--gpu", "rtx-4090", "--", sys.executable, str(EXAMPLE)]
    seconds(imports)  # the first import reads the libraries from disk
    imported, ran = [], []
    for _ in range(rounds):
        imported.append(seconds(imports))
        ran.append(seconds(dry_run))
    return {
        "imports_s": statistics.median(imported),
        "run_s": statistics.median(ran),
        "more_s": statistics.median(ran) - statistics.median(imported),
        "rounds": rounds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    print("whole run: " + json.dumps(measure(parser.parse_args().rounds)))
