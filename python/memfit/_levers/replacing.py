"""Replacement of layers in a model and of parameters in optimizers, with functions that undo it."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import torch
from torch import nn

from .target import Undo

Layer = TypeVar("Layer", bound=nn.Module)


def unshared(model: nn.Module, kind: type[Layer]) -> dict[str, Layer]:
    """Return the layers of exactly this class by path, each once; the model itself may be one.

    Subclasses are left out, since they may compute something else. So are layers that share a weight with
    another module.
    """
    uses = Counter(id(each) for module in model.modules() for each in module._parameters.values())
    return {
        path: module
        for path, module in model.named_modules()
        if type(module) is kind and uses[id(module._parameters.get("weight"))] == 1
    }


def layers_of(model: nn.Module, kind: type[Layer]) -> list[Layer]:
    """Return the layers of this class that have a parent module, so that they can be replaced."""
    return [layer for path, layer in unshared(model, kind).items() if path]


def replace(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> Undo:
    """Replace layers wherever the model has them. New layers take over the mode of the old ones."""
    changed: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is None or child not in replacements:
                continue
            parent._modules[name] = replacements[child].train(child.training)
            changed.append((parent, name, child))

    def undo() -> None:
        for parent, name, child in changed:
            child.train(parent._modules[name].training)  # type: ignore[union-attr]
            parent._modules[name] = child

    return undo


def regroup(
    optimizers: list[torch.optim.Optimizer], replacements: dict[nn.Parameter, list[nn.Parameter]]
) -> list[Undo]:
    """Replace parameters in the optimizers' groups and drop their state; return functions that undo it."""
    held = {each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    # New parameters whose original is in no group are added to the first group.
    ungrouped = [each for old, new in replacements.items() if old not in held for each in new]
    undos = []
    for optimizer in optimizers:
        undos.append(_regroup_one(optimizer, replacements, ungrouped))
        ungrouped = []
    return undos


def _regroup_one(
    optimizer: torch.optim.Optimizer,
    replacements: dict[nn.Parameter, list[nn.Parameter]],
    ungrouped: list[nn.Parameter],
) -> Undo:
    before = [(group, list(group["params"])) for group in optimizer.param_groups]
    states: dict[nn.Parameter, Any] = {}
    for group, parameters in before:
        group["params"] = [now for each in parameters for now in replacements.get(each, [each])]
        for parameter in parameters:
            if parameter in replacements and parameter in optimizer.state:
                states[parameter] = optimizer.state.pop(parameter)
    optimizer.param_groups[0]["params"] += ungrouped

    def undo() -> None:
        for parameter in (each for new in replacements.values() for each in new):
            optimizer.state.pop(parameter, None)
        optimizer.state.update(states)
        for group, parameters in before:
            group["params"] = parameters

    return undo
