"""`shard`: parameters, gradients and optimizer state are sharded over the ranks, block by block (FSDP2).

A script that uses DistributedDataParallel is sharded at that call (`instead_of_replicas`): a stand-in with
the interface of the wrapper shards the model instead.
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
    The optimizer's groups refer to the shards afterwards; it must not have stepped before.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise CannotApply(
            name, ("there is one process: start the script with `torchrun`, one process per GPU")
        )
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise CannotApply(name, "this PyTorch version has no `fully_shard` in torch.distributed.fsdp")
    if len(target.models()) > 1:
        raise CannotApply(name, "several models train together, and `shard` supports one")
    if _SHARDED in target.model.__dict__:
        # Already sharded where the script called DistributedDataParallel.
        return lambda: None
    if isinstance(target.model, nn.parallel.DistributedDataParallel):
        raise CannotApply(
            name, "the model is wrapped in DistributedDataParallel, which replicates it on each rank"
        )
    if any(state for optimizer in target.optimizers for state in optimizer.state.values()):
        raise CannotApply(name, "the optimizer has stepped already, so its state is not sharded")
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
            # Once each, in the same order on all ranks.
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
    """Gather a sharded tensor; return other values unchanged."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _moments(optimizer: torch.optim.Optimizer, owners: dict[Any, nn.Parameter]) -> dict[Any, Any]:
    """Return an optimizer's gathered state by original parameter."""
    return {
        owners.get(parameter, parameter): {
            key: _whole(value) for key, value in optimizer.state[parameter].items()
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in optimizer.state
    }


# Layers with fewer bytes are gathered with the root module.
_MIN_BYTES = 1 << 20


def units(model: nn.Module) -> list[str]:
    """Return the modules to gather separately: the repeated blocks, or each large layer if there are none."""
    found = blocks(model)
    if found:
        return found
    layers = [(path, module) for path, module in model.named_modules() if path and not any(module.children())]
    return [
        path
        for path, module in layers
        if sum(parameter.nbytes for parameter in module.parameters(recurse=False)) >= _MIN_BYTES
    ]


def _spread(model: nn.Module, inner: list[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Shard the model, and update the optimizers' groups."""
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
    """Make DistributedDataParallel shard the model instead of replicating it."""
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
    """Return a module's hooks of every kind."""
    return [
        (name, held) for name, held in module.__dict__.items() if "_hooks" in name and isinstance(held, dict)
    ]
