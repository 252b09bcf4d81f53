"""Applies the parallel part of a plan to a single-process model, with PyTorch's own engines.

  start(device)                                # the process group, from torchrun's variables
  parallel = Parallel.from_table(plan["parallel"])
  model = apply(model, parallel, [optimizer])  # DDP, FSDP2, HSDP, tensor parallelism, or a mesh of them

DistributedDataParallel, `fully_shard` and `parallelize_module` do the work; this package chooses their
arguments from the model's structure. It needs torch alone and does not import memfit, so that it can be
copied into an interpreter without memfit, as `memfit_parallel` next to `memfit_levers`.
"""

from __future__ import annotations

from .applying import APPLIED, apply, units
from .degrees import Parallel, ParallelError, cut
from .mesh import build_mesh
from .world import is_launched, start

__all__ = [
    "APPLIED",
    "Parallel",
    "ParallelError",
    "apply",
    "build_mesh",
    "cut",
    "is_launched",
    "start",
    "units",
]
