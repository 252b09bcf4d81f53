"""Runs out of memory on one of several ranks at a random point. Writes measurements/ranks.md.

    python scripts/faults/ranks.py [--runs 100] [--world 4]

The interpreter needs torch and memfit. Each run trains for three steps with DistributedDataParallel, or with
FSDP2 (in every other run with two replicas of each shard), on the CPU with gloo. One rank, chosen at random
for each run, gets an out-of-memory error once. The tests run the same scripts with fewer runs.
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
    """Run both kinds of training and write the page."""
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
        f"# Recovery when one rank runs out of memory\n\n"
        f"Written by `python scripts/faults/ranks.py --runs {options.runs} --world {options.world}` with PyTorch "
        f"{torch.__version__.split('+')[0]}, {options.world} processes on the CPU, gloo.\n\n"
        "A run trains for three optimizer steps with `memfit.Step`. One rank, chosen at random for each run, gets an "
        "out-of-memory error at a random point of a forward pass, a backward pass or a collective; all ranks then have to "
        "repeat the window (all micro-batches of the step). If a run hangs, the command ends without writing this page.\n\n"
        "| | runs | runs in which a window was repeated | hung | largest difference between ranks at the end | largest difference "
        "from a run without the error |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "With DistributedDataParallel the error can be placed at a micro-batch that the run does not reach. Then no window is "
        "repeated. A repeated window is split into other micro-batches, which changes the rounding: the last column is for float32 "
        "parameters of about 1.\n"
    )


if __name__ == "__main__":
    main()
