"""Tensor parallelism of the layers outside a model's blocks: embeddings, and the head.

Each rank has a slice of the matrix, and the output is whole on all ranks. An embedding is divided by
columns, whose gradients stay slices, and a head by its outputs. Where both share their matrix, rows of the
embedding are outputs of the head. A layer that cannot be divided evenly stays whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# Smaller matrices are not worth an exchange, unless a head is as large as an embedding.
_MIN_BYTES = 1 << 20


def find_outer(model: nn.Module, inside: Iterable[str], degree: int) -> list[list[str]]:
    """Return the names of the embeddings and heads to divide; those that share a matrix are together.
    `inside` names the modules whose layers are divided otherwise, or stay whole.
    """
    inside = list(inside)
    owners: dict[int, list[str]] = defaultdict(list)
    layers: dict[str, nn.Module] = {}
    shared = _owners(model)
    for name, module in model.named_modules():
        within = any(name == each or name.startswith(f"{each}.") for each in inside)
        if type(module) in (nn.Embedding, nn.Linear) and not within:
            layers[name] = module
            owners[id(module.weight)].append(name)
    tables = {each.weight.shape for each in layers.values() if isinstance(each, nn.Embedding)}
    heads = {each.weight.shape for each in layers.values() if isinstance(each, nn.Linear)}
    found = []
    for weight, names in owners.items():
        some = [layers[name] for name in names]
        matrix = some[0].weight
        rows = any(isinstance(each, nn.Linear) for each in some)
        large = matrix.nbytes >= _MIN_BYTES or (matrix.shape in tables and matrix.shape in heads)
        even = matrix.shape[0 if rows else 1] % degree == 0
        known = len(names) == shared[weight] and all(_is_plain(each) for each in some)
        if large and even and known:
            found.append(names)
    return found


def _owners(model: nn.Module) -> dict[int, int]:
    """Count the names of each parameter."""
    found: dict[int, int] = defaultdict(int)
    for _, parameter in model.named_parameters(remove_duplicate=False):
        found[id(parameter)] += 1
    return found


def _is_plain(module: nn.Module) -> bool:
    """Return `False` for an embedding that needs all of a row, or has sparse gradients."""
    return not isinstance(module, nn.Embedding) or (module.max_norm is None and not module.sparse)


def divide_outer(model: nn.Module, layers: list[list[str]], mesh: DeviceMesh, complete: Any) -> None:
    """Divide embeddings and heads over the ranks of a mesh. `complete` is called for each parameter whose
    gradient was accumulated.
    """
    known = dict(model.named_modules())
    whole = {"input_layouts": Replicate(), "output_layouts": Replicate()}
    for names in layers:
        some = [known[name] for name in names]
        rows = any(isinstance(each, nn.Linear) for each in some)
        for each in some:
            by_rows = rows and isinstance(each, nn.Embedding)
            parallelize_module(each, mesh, RowwiseParallel(**whole) if by_rows else ColwiseParallel(**whole))
        for each in some[1:]:
            each.weight = some[0].weight
        for parameter in {id(one): one for each in some for one in each.parameters()}.values():
            parameter.register_post_accumulate_grad_hook(complete)
