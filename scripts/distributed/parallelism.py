"""Every way of training on several GPUs that torch.distributed has, a few steps of each, one process for each
GPU.

    memfit run --gpu a100-80gb:4 --steps 0 --show-output -- \\
        torchrun --standalone --nproc-per-node 4 scripts/distributed/parallelism.py [CASE…] [--answer FILE]

Runs on virtual cards or on real ones. Each case checks its results; rank 0 prints
a line for each, and the exit status is 0 if all succeeded. The number of processes must be even.
`fsdp2-is-the-sum-of-its-parts` also holds with 8 processes; run it alone then.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import sys
import traceback
from pathlib import Path
from typing import Any

import communication_cases  # noqa: F401 (enters its cases, as do the next two)
import data_cases  # noqa: F401
import model_cases  # noqa: F401
import torch
import torch.distributed as dist
from common import CASES, rank, say, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--answer", type=Path, help="write the outcome of each case to this file, as JSON")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]}: {', '.join(CASES)}")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    outcomes = {}
    for name in arguments.cases or CASES:
        # Modules refer to themselves: those of the case before would be freed somewhere in this one.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            CASES[name]()
            failure = ""
        except (Exception, queue.Empty) as error:
            failure = f"{type(error).__name__}: {error}".splitlines()[0]
            traceback.print_exc()
        failures: list[Any] = [None] * world()
        dist.all_gather_object(failures, failure)
        outcomes[name] = "; ".join(f"rank {at}: {each}" for at, each in enumerate(failures) if each) or "ok"
        peak = torch.cuda.max_memory_allocated() / 2**20
        say(f"{name:40} {outcomes[name]:8} peak {peak:8.2f} MiB")
    if rank() == 0 and arguments.answer:
        arguments.answer.write_text(json.dumps(outcomes), encoding="utf-8")
    dist.destroy_process_group()
    return int(any(outcome != "ok" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
