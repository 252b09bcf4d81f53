"""The device mesh of a parallel plan."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .degrees import DEGREES, Parallel


def build_mesh(parallel: Parallel, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks, with a dimension for each degree above one.

    `replicate` and `shard` are both there as soon as the model is sharded in replicas, or replicated with
    tensor parallelism: `fully_shard` takes two dimensions for these.
    """
    names = [name for name in DEGREES if getattr(parallel, name) > 1 or name in _data_names(parallel)]
    names = names or ["replicate"]
    return init_device_mesh(
        device_type, tuple(getattr(parallel, name) for name in names), mesh_dim_names=tuple(names)
    )


def _data_names(parallel: Parallel) -> tuple[str, ...]:
    if parallel.replicate > 1 and (parallel.shard > 1 or parallel.tensor > 1 or parallel.pipeline > 1):
        return ("replicate", "shard")
    return ("shard",) if parallel.shard > 1 else ()


def data_mesh(mesh: DeviceMesh) -> Any:
    """Return the dimensions over which batches are divided; `None` if there are none."""
    names = [name for name in ("replicate", "shard") if name in (mesh.mesh_dim_names or ())]
    return mesh[tuple(names)] if names else None


def batch_share(parallel: Parallel) -> tuple[int, int]:
    """Return this rank's part of each batch, and the number of parts."""
    rank = dist.get_rank()
    inner = parallel.context * parallel.tensor
    return rank // inner % parallel.batches, parallel.batches
