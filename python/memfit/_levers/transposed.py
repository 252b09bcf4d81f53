"""Linear layers with a transposed weight: class `Conv1D` of transformers, which GPT-2 is made of.

Most libraries know `nn.Linear` only. Their levers put one in the place of such a layer, with the same weight
in the other order.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .replacing import regroup, replace, unshared
from .target import Target, Undo
from .wrapping import together


def is_transposed(module: nn.Module) -> bool:
    """Return `True` for a layer whose weight has inputs as rows. transformers need not be installed."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def linear_layers(model: nn.Module) -> dict[str, Any]:
    """Return the linear layers of both kinds that share their weight with nothing, by path and in order."""
    kinds = {nn.Linear, *(type(each) for each in model.modules() if is_transposed(each))}
    found = {path: each for kind in kinds for path, each in unshared(model, kind).items()}
    return {path: found[path] for path, _ in model.named_modules() if path in found}


def sides(layer: Any) -> tuple[int, int]:
    """Return the numbers of a layer's inputs and outputs."""
    if is_transposed(layer):
        return int(layer.nx), int(layer.nf)
    return int(layer.in_features), int(layer.out_features)


def as_linear(target: Target) -> Undo:
    """Replace transposed layers with `nn.Linear` with the same weights; the undo transposes them back."""
    instead: dict[nn.Module, Any] = {}
    changed: dict[nn.Parameter, list[nn.Parameter]] = {}
    for path, layer in linear_layers(target.model).items():
        if not path or not is_transposed(layer):
            continue
        new = nn.Linear(*sides(layer), bias=False, device="meta")
        weight: nn.Parameter = layer.weight
        new.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=weight.requires_grad)
        new.bias = layer.bias
        instead[layer] = new
        changed[weight] = [new.weight]
    if not instead:
        return lambda: None
    undone = [replace(target.model, instead), *regroup(target.optimizers, changed)]
    if not target.undoes:
        # The originals would stay in memory.
        return lambda: None

    def undo() -> None:
        together(undone)()
        for layer, new in instead.items():
            layer.weight.data = new.weight.detach().t().contiguous()  # type: ignore[union-attr]

    return undo
