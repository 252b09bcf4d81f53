"""`shard`: parameters, gradients and moments are spread over the ranks, block by block (FSDP2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .blocks import blocks
from .target import CannotApply, Target, Undo, modules


def apply(target: Target, value: Any, name: str) -> Undo:
    """Shard in place over all ranks: `value` is true, or a list of the modules that are gathered one by one. The optimizer's
    groups are pointed to the shards; it must not have stepped."""
    if not (dist.is_available() and dist.is_initialized()):
        raise CannotApply(name, "there is one process: start the script with `torchrun`, one process a card")
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise CannotApply(
            name, "this release of PyTorch has no `fully_shard` in torch.distributed.fsdp"
        ) from None
    if isinstance(target.model, nn.parallel.DistributedDataParallel):
        raise CannotApply(
            name, "the model is wrapped in DistributedDataParallel, which keeps a copy on each rank"
        )
    if any(state for optimizer in target.optimizers for state in optimizer.state.values()):
        raise CannotApply(name, "the optimizer has stepped already: its moments are whole")
    model = target.model
    inner = modules(target, name, value) if isinstance(value, list) else modules(target, name, blocks(model))
    kinds = {module: type(module) for module in model.modules()}
    hooks = {module: {name: set(held) for name, held in _hooks(module)} for module in kinds}
    attributes = {module: set(module.__dict__) for module in kinds}
    before = dict(model.named_parameters())
    groups = [
        [(group, list(group["params"])) for group in optimizer.param_groups]
        for optimizer in target.optimizers
    ]
    for module in inner:
        fully_shard(module)
    fully_shard(model)
    after = dict(model.named_parameters())
    renewed = {before[path]: after[path] for path in before}
    for each in groups:
        for group, parameters in each:
            group["params"] = [renewed.get(parameter, parameter) for parameter in parameters]

    def undo() -> None:
        with torch.no_grad():
            for module in inner:
                module.reshard()
            model.reshard()
            whole = {path: parameter.full_tensor() for path, parameter in model.named_parameters()}
        for module, kind in kinds.items():
            for name, held in _hooks(module):
                for key in [key for key in held if key not in hooks[module].get(name, ())]:
                    del held[key]
            for key in [key for key in module.__dict__ if key not in attributes[module]]:
                del module.__dict__[key]
            module.__class__ = kind
        for path, parameter in before.items():
            owner = model.get_submodule(path.rpartition(".")[0])
            parameter.data = whole[path]
            parameter.grad = None
            owner._parameters[path.rpartition(".")[2]] = parameter
        for each in groups:
            for group, parameters in each:
                group["params"] = parameters
        for optimizer in target.optimizers:
            optimizer.state.clear()

    return undo


def _hooks(module: nn.Module) -> list[tuple[str, dict[Any, Any]]]:
    """A module's hooks of every kind."""
    return [
        (name, held) for name, held in module.__dict__.items() if "_hooks" in name and isinstance(held, dict)
    ]
