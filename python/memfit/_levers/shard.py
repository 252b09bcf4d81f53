"""`shard`: parameters, gradients and moments are spread over the ranks, block by block (FSDP2).

A script that replicates its model by DistributedDataParallel is sharded where it does that
(`instead_of_replicas`): what stands for the replica has its face, and shards in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .blocks import blocks
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, modules


@lever("shard", Stage.MODEL, 150)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Shard in place over all ranks: `value` is true, or a list of the modules that are gathered one by one.
    The optimizer's groups are pointed to the shards; it must not have stepped.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise CannotApply(name, "there is one process: start the script with `torchrun`, one process a card")
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise CannotApply(name, "this release of PyTorch has no `fully_shard` in torch.distributed.fsdp")
    if len(target.models()) > 1:
        raise CannotApply(name, "several models train together, and this shards one")
    if _SHARDED in target.model.__dict__:
        # It was sharded where the script would have replicated it.
        return lambda: None
    if isinstance(target.model, nn.parallel.DistributedDataParallel):
        raise CannotApply(
            name, "the model is wrapped in DistributedDataParallel, which keeps a copy on each rank"
        )
    if any(state for optimizer in target.optimizers for state in optimizer.state.values()):
        raise CannotApply(name, "the optimizer has stepped already: its moments are whole")
    model = target.model
    inner = modules(target, name, value if isinstance(value, list) else units(model))
    kinds = {module: type(module) for module in model.modules()}
    hooks = {module: {name: set(held) for name, held in _hooks(module)} for module in kinds}
    attributes = {module: set(module.__dict__) for module in kinds}
    # A tied weight has several names.
    before = dict(model.named_parameters(remove_duplicate=False))
    groups = [
        [(group, list(group["params"])) for group in optimizer.param_groups]
        for optimizer in target.optimizers
    ]
    _spread(model, inner, target.optimizers)

    def undo() -> None:
        with torch.no_grad():
            for module in inner:
                module.reshard()
            model.reshard()
            shards = dict(model.named_parameters(remove_duplicate=False))
            # Once for each, and on all ranks in one order.
            whole = {shard: _whole(shard) for shard in dict.fromkeys(shards.values())}
            owners = {shard: before[path] for path, shard in shards.items()}
            moments = [_moments(optimizer, owners) for optimizer in target.optimizers]
        for module, kind in kinds.items():
            for name, held in _hooks(module):
                for key in [key for key in held if key not in hooks[module].get(name, ())]:
                    del held[key]
            for key in [key for key in module.__dict__ if key not in attributes[module]]:
                del module.__dict__[key]
            module.__class__ = kind
        for path, parameter in before.items():
            owner = model.get_submodule(path.rpartition(".")[0])
            parameter.data = whole[shards[path]]
            parameter.grad = None
            owner._parameters[path.rpartition(".")[2]] = parameter
        for each in groups:
            for group, parameters in each:
                group["params"] = parameters
        for optimizer, state in zip(target.optimizers, moments, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)

    return undo


def _whole(value: Any) -> Any:
    """What is spread over the ranks, put together."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _moments(optimizer: torch.optim.Optimizer, owners: dict[Any, nn.Parameter]) -> dict[Any, Any]:
    """An optimizer's state, whole, by the parameters that the shards are of."""
    return {
        owners.get(parameter, parameter): {
            key: _whole(value) for key, value in optimizer.state[parameter].items()
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in optimizer.state
    }


# A layer with fewer bytes is gathered with the rest.
_LEAST = 1 << 20


def units(model: nn.Module) -> list[str]:
    """What is gathered at a time: the repeated blocks, or where there are none, each large layer."""
    found = blocks(model)
    if found:
        return found
    layers = [(path, module) for path, module in model.named_modules() if path and not any(module.children())]
    return [
        path
        for path, module in layers
        if sum(parameter.nbytes for parameter in module.parameters(recurse=False)) >= _LEAST
    ]


def _spread(model: nn.Module, inner: list[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Shard it, and point the optimizers to the shards."""
    from torch.distributed.fsdp import fully_shard

    before = dict(model.named_parameters())
    for module in inner:
        fully_shard(module)
    fully_shard(model)
    after = dict(model.named_parameters())
    renewed = {before[path]: after[path] for path in before}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [renewed.get(parameter, parameter) for parameter in group["params"]]


_SHARDED = "_memfit_sharded"


def instead_of_replicas(optimizers: Callable[[], Iterable[torch.optim.Optimizer]]) -> Undo:
    """From now on DistributedDataParallel shards the model that it is given, instead of keeping a copy on
    each rank.
    """
    replicas = nn.parallel.DistributedDataParallel
    original = replicas.__init__

    class Shards(replicas):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        def train(self, mode: bool = True) -> Any:
            return nn.Module.train(self, mode)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self.module.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                self.module.set_requires_gradient_sync(True)

    def init(self: Any, module: nn.Module, *_args: Any, **_kwargs: Any) -> None:
        nn.Module.__init__(self)
        known = dict(module.named_modules())
        _spread(module, [known[path] for path in units(module)], optimizers())
        self.__dict__[_SHARDED] = True
        self.module = module
        self.require_backward_grad_sync = True
        self.__class__ = Shards

    replicas.__init__ = init  # type: ignore[method-assign]

    def undo() -> None:
        replicas.__init__ = original  # type: ignore[method-assign]

    return undo


def _hooks(module: nn.Module) -> list[tuple[str, dict[Any, Any]]]:
    """A module's hooks of every kind."""
    return [
        (name, held) for name, held in module.__dict__.items() if "_hooks" in name and isinstance(held, dict)
    ]
