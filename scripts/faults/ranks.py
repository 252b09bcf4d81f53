"""Memory that runs out on one of several ranks, at a random moment. Writes the results to
measurements/ranks.md.

    python scripts/faults/ranks.py [--runs 100] [--world 4]

The interpreter needs torch and memfit. Each run trains for three steps with DistributedDataParallel, or with
FSDP2 (every other time with two copies of each shard), on the CPU with gloo; one rank, drawn anew for each
run, is given an out-of-memory error once. The tests run the same scripts with fewer runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "measurements/ranks.md"
sys.path.insert(0, str(ROOT / "tests/python"))

WAYS = {"DistributedDataParallel": "rank_training.py", "FSDP2": "shard_training.py"}


def main() -> None:
    """Runs both ways and writes the page."""
    from test_step_ranks import ranks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--world", type=int, default=4)
    options = parser.parse_args()
    rows = []
    for way, script in WAYS.items():
        began = time.monotonic()
        said = ranks(options.world, options.runs, script, limit=60 + 20 * options.runs)
        took = time.monotonic() - began
        print(f"{way}: {said} ({took:.0f} s)", file=sys.stderr)
        rows.append(
            f"| {way} | {options.runs} | {said['retried']} | 0 | {said['apart']:g} | {said['worst']:.1e} |"
        )
    import torch

    TARGET.write_text(
        f"# A rank that runs out of memory\n\n"
        f"Made by `python scripts/faults/ranks.py --runs {options.runs} --world {options.world}` with PyTorch "
        f"{torch.__version__.split('+')[0]}, {options.world} processes on the CPU, gloo.\n\n"
        "A run is three optimizer steps; one rank, drawn anew for each run, gets an out-of-memory error at a place of a "
        "forward, a backward or an exchange that differs from run to run. A run that hangs ends the command without a "
        "page.\n\n"
        "| | runs | in which a window was run again | hung | ranks apart at the end | furthest from the run without |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "With DistributedDataParallel, a fault that is drawn for a part that does not come is none, so fewer windows are "
        "run again than there are runs. The window that is run again is cut into other parts, which is another order of "
        "rounding: the last column is in float32, of parameters of about one.\n"
    )


if __name__ == "__main__":
    main()
