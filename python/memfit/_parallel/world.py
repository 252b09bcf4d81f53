"""The processes of a training that torchrun starts."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from .degrees import Parallel, ParallelError

# The variables that torchrun, and Slurm's scripts after its example, set for each process.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Return `True` if this process is one of several, or was started by torchrun."""
    return (dist.is_available() and dist.is_initialized()) or all(name in os.environ for name in _VARIABLES)


def start(device_type: str) -> None:
    """Start the process group from torchrun's variables, unless the script did.

    The group has gloo for the host's tensors beside NCCL for those on GPUs, and each process takes the GPU of
    its local rank.
    """
    if not dist.is_available():
        raise ParallelError("this build of PyTorch has no torch.distributed")
    if device_type == "cuda" and torch.cuda.device_count() > 1 and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if dist.is_initialized():
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ParallelError(
            f"this plan is for several processes, but this one was started alone: {missing[0]} is not set",
            "start it with `memfit launch PLAN --run -- python train.py`, or with torchrun",
        )
    device: dict[str, Any] = {}
    if device_type == "cuda":
        device = {"device_id": torch.device("cuda", torch.cuda.current_device())}
    dist.init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo", **device)


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
