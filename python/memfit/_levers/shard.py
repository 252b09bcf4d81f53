"""`shard`: the parallel part of a plan, which the package `_parallel` applies."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, modules

# In an interpreter without memfit, both packages have other names.
_PARALLEL = "memfit_parallel" if __name__.startswith("memfit_levers") else "memfit._parallel"


@lever("shard", Stage.MODEL, 150)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Apply a table `[parallel]`. `true`, or a list of the modules that are gathered one by one, shards over
    all ranks.

    The model stays distributed when the lever is undone: no rank has the memory for all of it.
    """
    import torch.distributed as dist

    parallel = import_module(_PARALLEL)
    if len(target.models()) > 1:
        raise CannotApply(name, "several models train together, and `shard` supports one")
    if parallel.APPLIED in target.model.__dict__:
        # Already sharded where the script called DistributedDataParallel.
        return lambda: None
    if isinstance(value, dict):
        degrees, units = parallel.Parallel.from_table(value), None
        if degrees.pipeline > 1 and not target.in_step:
            raise CannotApply(
                name, "a pipeline needs a script that calls `memfit.Step`, which runs its stages"
            )
    else:
        if not (dist.is_available() and dist.is_initialized()):
            raise CannotApply(
                name, "there is one process: start the script with `torchrun`, one process per GPU"
            )
        degrees, units = parallel.Parallel(shard=dist.get_world_size()), None
        if isinstance(value, list):
            modules(target, name, value)
            units = value
    try:
        target.model = parallel.apply(
            target.model, degrees, target.optimizers, device=target.place(), units=units
        )
    except parallel.ParallelError as error:
        raise CannotApply(name, str(error)) from None
    return lambda: None
