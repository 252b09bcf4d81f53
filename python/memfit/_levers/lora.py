"""`lora`: the model's weights are frozen, and small matrices are trained beside those of its linear layers.

When it is undone, what was trained is added to the weights: a model that was never trained comes back bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .blocks import blocks
from .target import CannotApply, Target, Undo, modules, table
from .wrapping import together, wrap

DOWN, UP = "memfit_lora_down", "memfit_lora_up"


def apply(target: Target, value: Any, name: str) -> Undo:
    """Train small matrices: `value` is their rank, or a table of `rank`, `alpha` and the `modules` that they stand beside."""
    wanted = table(value, "rank")
    rank, alpha = int(wanted.get("rank", 8)), float(wanted.get("alpha", 2 * int(wanted.get("rank", 8))))
    if rank < 1:
        raise CannotApply(name, f"its rank is at least 1, and not {rank}")
    layers = trained_layers(target.model, name, target, wanted.get("modules"))
    trained = [(each, each.requires_grad) for each in target.model.parameters()]
    for parameter, _ in trained:
        parameter.requires_grad_(False)
        parameter.grad = None
    undone: list[Undo] = []

    def thaw() -> None:
        for parameter, before in trained:
            parameter.requires_grad_(before)

    undone.append(thaw)
    added: list[nn.Parameter] = []
    for path, layer in layers.items():
        undone.append(_one(path, layer, rank, alpha / rank, added))
    undone.extend(_regroup(optimizer, added) for optimizer in target.optimizers)
    return together(undone)


def trained_layers(
    model: nn.Module, name: str, target: Target | None = None, chosen: Any = None
) -> dict[str, nn.Linear]:
    """The linear layers beside which small matrices are trained: those of the repeated blocks, or else all but the last."""
    if chosen and target is not None:
        picked = zip(chosen, modules(target, name, chosen), strict=True)
        layers = {path: module for path, module in picked if isinstance(module, nn.Linear)}
        if len(layers) < len(chosen):
            raise CannotApply(name, "only linear layers can be named")
        return layers
    inside = tuple(f"{path}." for path in blocks(model))
    every = {path: module for path, module in model.named_modules() if type(module) is nn.Linear}
    layers = {path: module for path, module in every.items() if path.startswith(inside)} if inside else {}
    if not layers and len(every) > 1:
        layers = dict(list(every.items())[:-1])
    if not layers:
        raise CannotApply(name, "the model has no linear layers beside which matrices could be trained")
    return layers


def _one(path: str, layer: nn.Linear, rank: int, scale: float, added: list[nn.Parameter]) -> Undo:
    place = layer.weight.device
    kind = layer.weight.dtype if layer.weight.is_floating_point() else torch.float32
    # Numbers of their own, so that the script's random numbers come as if nothing had been made here.
    seed = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "little")
    numbers = torch.rand(rank, layer.in_features, generator=torch.Generator().manual_seed(seed))
    bound = layer.in_features**-0.5
    down = nn.Parameter(((numbers * 2 - 1) * bound).to(place, kind))
    up = nn.Parameter(torch.zeros(layer.out_features, rank, dtype=kind, device=place))
    layer.register_parameter(DOWN, down)
    layer.register_parameter(UP, up)
    added += [down, up]

    def around(forward: Callable[..., torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        beside = functional.linear(functional.linear(inputs.to(down.dtype), down), up) * scale
        through = forward(inputs)
        return through + beside.to(through.dtype)

    unwrap = wrap(layer, around)

    def undo() -> None:
        unwrap()
        del layer._parameters[DOWN], layer._parameters[UP]
        if bool((up != 0).any()):
            with torch.no_grad():
                change = (up.double() @ down.double() * scale).to(layer.weight.dtype)
                if layer.weight.numel():
                    layer.weight.add_(change)
                else:
                    # The weight is in codes: whoever coded it adds this when he puts it back.
                    layer.weight.data = change

    return undo


def _regroup(optimizer: torch.optim.Optimizer, added: list[nn.Parameter]) -> Undo:
    """The optimizer updates the small matrices, with the settings of its first group, and no frozen weight."""
    before = [list(group["params"]) for group in optimizer.param_groups]
    states = dict(optimizer.state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)
        group["params"] = []
    optimizer.param_groups[0]["params"] = list(added)

    def undo() -> None:
        for group, parameters in zip(optimizer.param_groups, before, strict=True):
            group["params"] = parameters
        optimizer.state.clear()
        optimizer.state.update(states)

    return undo
