"""Applies a parallel plan to a model and its optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import pipeline, tensor
from .degrees import Parallel, ParallelError
from .guards import watch_calls
from .mesh import build_mesh, data_mesh
from .vocabulary import divide_outer, find_outer
from .world import check_world, start

# In an interpreter without memfit, the package of levers has another name.
_LEVERS = "memfit_levers" if __name__.startswith("memfit_parallel") else "memfit._levers"

# Layers with fewer bytes are gathered with the root module.
_MIN_BYTES = 1 << 20

# Set on models that a plan was applied to.
APPLIED = "_memfit_parallel"


def apply(
    model: nn.Module,
    parallel: Parallel,
    optimizers: Iterable[torch.optim.Optimizer] = (),
    *,
    device: torch.device | None = None,
    units: list[str] | None = None,
) -> nn.Module:
    """Apply a plan, and return the module to call: the model, or DistributedDataParallel around it.

    All ranks call this with the same model, whose parameters and buffers become those of rank 0. The
    optimizers' groups refer to the divided parameters afterwards, so they must not have stepped before.
    `units` are the names of the modules that FSDP2 gathers one by one; by default they follow from the
    model's structure.
    """
    optimizers = list(optimizers)
    place = device or next((each.device for each in model.parameters()), torch.device("cpu"))
    start(place)
    _refuse(model, parallel, optimizers)
    check_world(parallel)
    mesh = build_mesh(parallel, place.type)
    if parallel.world == 1:
        return model
    before = dict(model.named_parameters(remove_duplicate=False))
    regions, outer = [], []
    if parallel.tensor > 1:
        blocks = _blocks(model)
        regions = tensor.find_regions(model, blocks, parallel.tensor)
        outer = find_outer(model, [*blocks, *(region.name for region in regions)], parallel.tensor)
    copy_from_first_rank(model)
    if parallel.pipeline > 1:
        setattr(model, APPLIED, parallel)
        return pipeline.build(model, parallel, optimizers, mesh, place)
    if parallel.replicate == parallel.world:
        setattr(model, APPLIED, parallel)
        return nn.parallel.DistributedDataParallel(model, device_ids=None)
    if regions:
        tensor.divide(model, regions, mesh["tensor"])
        divide_outer(model, outer, mesh["tensor"], tensor.complete)
        watch_calls(model, (region.name for region in regions))
    if parallel.batches > 1:
        _shard(model, parallel, mesh, units)
    renew(optimizers, before, model)
    setattr(model, APPLIED, parallel)
    return model


def _refuse(model: nn.Module, parallel: Parallel, optimizers: list[torch.optim.Optimizer]) -> None:
    if parallel.context > 1:
        raise ParallelError(
            "the plan file asks for context parallelism (`context`), which memfit does not apply: the model does not "
            "show which tensors of a batch hold sequences",
            "call `torch.distributed.tensor.experimental.context_parallel` in the script",
        )
    if parallel.pipeline > 1 and parallel.replicate * parallel.pipeline != parallel.world:
        raise ParallelError(
            "the plan file asks for a pipeline whose stages are divided further, which memfit does not apply",
            "combine `pipeline` with `replicate` only",
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ParallelError(
            "the model is wrapped in DistributedDataParallel already", "pass the model itself"
        )
    if APPLIED in model.__dict__ or any(hasattr(each, "device_mesh") for each in model.parameters()):
        raise ParallelError("the model is distributed already", "pass it as a one-process script has it")
    if any(each.is_meta for each in (*model.parameters(), *model.buffers())):
        raise ParallelError(
            "the model has parameters on the meta device, which have no values to share between ranks",
            "create it on the CPU, or call `fully_shard`, `to_empty` and your initialization in the script",
        )
    if any(state for optimizer in optimizers for state in optimizer.state.values()):
        raise ParallelError(
            "the optimizer has stepped already, so its state would not be divided",
            "apply the plan before the first step, and load a checkpoint afterwards",
        )


def copy_from_first_rank(model: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0, one tensor at a time."""
    backends = dist.get_backend_config() if hasattr(dist, "get_backend_config") else dist.get_backend()
    cuda = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    seen: set[int] = set()
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            if id(each) in seen or each.numel() == 0:
                continue
            seen.add(id(each))
            if each.device.type in backends or cuda is None:
                whole = each.detach().contiguous()
            else:
                whole = each.detach().to(cuda)
            dist.broadcast(whole, 0)
            if whole.data_ptr() != each.data_ptr():
                each.copy_(whole)


def _blocks(model: nn.Module) -> list[str]:
    found: list[str] = import_module(f"{_LEVERS}.blocks").blocks(model)
    return found


def units(model: nn.Module) -> list[str]:
    """Return the modules to gather separately: the repeated blocks, or each large layer if there are none.

    A module that shares a parameter with the rest of the model is gathered with the root, which has both.
    """
    found = _blocks(model)
    if not found:
        found = [
            path
            for path, module in model.named_modules()
            if path
            and not any(module.children())
            and sum(each.nbytes for each in module.parameters(recurse=False)) >= _MIN_BYTES
        ]
    known = dict(model.named_modules())
    names = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    alone = []
    for path in found:
        inside = Counter(id(each) for _, each in known[path].named_parameters(remove_duplicate=False))
        if all(names[each] == count for each, count in inside.items()):
            alone.append(path)
    return alone


def _shard(model: nn.Module, parallel: Parallel, mesh: Any, names: list[str] | None) -> None:
    """Shard a model over the mesh's data dimensions: unit by unit, and the rest with the root."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    # DistributedDataParallel does not support parameters that tensor parallelism has divided. Their replicas
    # are stored as shards that are gathered once in each step.
    reshard = parallel.reshard_after_forward and parallel.shard > 1
    settings = {
        "mesh": data_mesh(mesh),
        "offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        if parallel.offload
        else OffloadPolicy(),
    }
    known = dict(model.named_modules())
    chosen = units(model) if names is None else names
    missing = [name for name in chosen if name not in known]
    if missing:
        raise ParallelError(f"the model has no module `{missing[0]}` to shard")
    watch_calls(model, chosen)
    for name in chosen:
        for each in _of_other_types(known[name]):
            fully_shard(each, reshard_after_forward=reshard, **settings)
        fully_shard(known[name], reshard_after_forward=reshard, **settings)
    inside = {id(each) for name in chosen for each in known[name].modules()}
    for each in _of_other_types(model, inside):
        fully_shard(each, reshard_after_forward=reshard, **settings)
    # PyTorch keeps the root's own parameters, which the backward pass needs first, unless this is disabled.
    fully_shard(model, reshard_after_forward=None if reshard else False, **settings)


def _of_other_types(module: nn.Module, without: Set[int] = frozenset()) -> list[nn.Module]:
    """Return the layers whose parameters have another type than most of a module's: FSDP2 gathers parameters
    of one type together.
    """
    sizes: Counter[torch.dtype] = Counter()
    holders = []
    for each in module.modules():
        own = list(each.parameters(recurse=False))
        if id(each) in without or not own:
            continue
        holders.append((each, {parameter.dtype for parameter in own}))
        for parameter in own:
            sizes[parameter.dtype] += parameter.numel()
    if len(sizes) < 2:
        return []
    usual = sizes.most_common(1)[0][0]
    for each, types in holders:
        if len(types) > 1 or (types != {usual} and (each is module or any(each.children()))):
            raise ParallelError(
                f"{type(each).__name__} has parameters of several types ({', '.join(map(str, sizes))}), which "
                "FSDP2 cannot gather together",
                "give the parameters of one layer one type",
            )
    return [each for each, types in holders if types != {usual}]


def renew(
    optimizers: Iterable[torch.optim.Optimizer], before: dict[str, nn.Parameter], model: nn.Module
) -> None:
    """Let optimizers refer to the parameters that a model has now in place of those from `before`."""
    after = dict(model.named_parameters(remove_duplicate=False))
    renewed = {before[path]: after[path] for path in before}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [renewed.get(parameter, parameter) for parameter in group["params"]]
