"""The device mesh of a parallel plan."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .degrees import DEGREES, Parallel


def build_mesh(parallel: Parallel, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks, with a dimension for each degree above one."""
    names = [name for name in DEGREES if getattr(parallel, name) > 1] or ["replicate"]
    return init_device_mesh(
        device_type, tuple(getattr(parallel, name) for name in names), mesh_dim_names=tuple(names)
    )


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the dimensions over which batches are divided."""
    return mesh[tuple(name for name in ("replicate", "shard") if name in (mesh.mesh_dim_names or ()))]
