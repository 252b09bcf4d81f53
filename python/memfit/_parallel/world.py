"""The processes of a training run that torchrun starts."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from . import attempts
from .degrees import Parallel, ParallelError

# The variables that torchrun, and Slurm's scripts after its example, set for each process.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Return `True` if this process is one of several, or was started by torchrun."""
    return (dist.is_available() and dist.is_initialized()) or all(name in os.environ for name in _VARIABLES)


def start(place: torch.device) -> None:
    """Start the process group of a model on this device from torchrun's variables, unless the script did.

    With a model on a GPU, the group has gloo for the host's tensors in addition to NCCL.
    """
    if not dist.is_available():
        raise ParallelError("this build of PyTorch has no torch.distributed")
    if place.type == "cuda":
        _take_device(place)
    if dist.is_initialized():
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ParallelError(
            f"this plan is for several processes, but this one was started alone: {missing[0]} is not set",
            "start it with `memfit launch PLAN --run -- python train.py`, or with torchrun",
        )
    settings: dict[str, Any] = {}
    if attempts.keeps_old_keys():
        settings["store"] = attempts.own_store()
        settings["rank"], settings["world_size"] = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if place.type != "cuda":
        dist.init_process_group("gloo", **settings)
        return
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **settings)


def _take_device(place: torch.device) -> None:
    """Make the model's GPU the current one. Refuse a GPU that the other local ranks have as well."""
    index = torch.cuda.current_device() if place.index is None else place.index
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local != index and torch.cuda.device_count() > 1:
        raise ParallelError(
            f"the model of local rank {local} is on cuda:{index}, which is another rank's GPU",
            "start torchrun with `--virtual-local-rank`, as `memfit launch` does: each process then sees its "
            "own GPU as cuda:0",
        )
    torch.cuda.set_device(index)


def check_world(parallel: Parallel) -> None:
    """Refuse a plan that is for another number of ranks."""
    world = dist.get_world_size()
    if world == parallel.world:
        return
    degrees = {
        name: getattr(parallel, name) for name in ("replicate", "shard", "tensor", "context", "pipeline")
    }
    product = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    raise ParallelError(
        f"the plan is for {parallel.world} ranks ({product or 'one process'}), but {world} were started",
        "start as many as the plan has with `memfit launch PLAN --run -- python train.py`, or make a plan for "
        f"{world} GPUs",
    )
