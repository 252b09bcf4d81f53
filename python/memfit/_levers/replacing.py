"""Replaces layers of a model by other modules, and parameters of optimizers by others; puts them back."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import torch
from torch import nn

from .target import Undo

Layer = TypeVar("Layer", bound=nn.Module)


def unshared(model: nn.Module, kind: type[Layer]) -> dict[str, Layer]:
    """Return the layers of exactly this class by path, each once; the model itself may be one.

    Subclasses may compute something else. Layers that share a weight with another module are left out.
    """
    uses = Counter(id(each) for module in model.modules() for each in module._parameters.values())
    return {
        path: module
        for path, module in model.named_modules()
        if type(module) is kind and uses[id(module._parameters.get("weight"))] == 1
    }


def layers_of(model: nn.Module, kind: type[Layer]) -> list[Layer]:
    """Return the layers of this class inside the model, where they can be replaced."""
    return [layer for path, layer in unshared(model, kind).items() if path]


def replace(model: nn.Module, instead: dict[nn.Module, nn.Module]) -> Undo:
    """Replace layers wherever the model has them; a new layer takes over the mode of the old one."""
    changed: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is None or child not in instead:
                continue
            parent._modules[name] = instead[child].train(child.training)
            changed.append((parent, name, child))

    def undo() -> None:
        for parent, name, child in changed:
            child.train(parent._modules[name].training)  # type: ignore[union-attr]
            parent._modules[name] = child

    return undo


def regroup(
    optimizers: list[torch.optim.Optimizer], instead: dict[nn.Parameter, list[nn.Parameter]]
) -> list[Undo]:
    """Replace parameters in the optimizers' groups and drop their state; return functions that undo it."""
    held = {each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    # New parameters whose original is in no group go to the first group.
    homeless = [each for old, new in instead.items() if old not in held for each in new]
    undone = []
    for optimizer in optimizers:
        undone.append(_regroup_one(optimizer, instead, homeless))
        homeless = []
    return undone


def _regroup_one(
    optimizer: torch.optim.Optimizer,
    instead: dict[nn.Parameter, list[nn.Parameter]],
    homeless: list[nn.Parameter],
) -> Undo:
    before = [(group, list(group["params"])) for group in optimizer.param_groups]
    states: dict[nn.Parameter, Any] = {}
    for group, parameters in before:
        group["params"] = [now for each in parameters for now in instead.get(each, [each])]
        for parameter in parameters:
            if parameter in instead and parameter in optimizer.state:
                states[parameter] = optimizer.state.pop(parameter)
    optimizer.param_groups[0]["params"] += homeless

    def undo() -> None:
        for parameter in (each for new in instead.values() for each in new):
            optimizer.state.pop(parameter, None)
        optimizer.state.update(states)
        for group, parameters in before:
            group["params"] = parameters

    return undo
