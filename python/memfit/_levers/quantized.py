"""`quantized-base`: the frozen weights beside which small matrices are trained, in 8 or 4 bits. `quantized-weights`: the same for
a model that is not trained.

A weight is decoded where it is used, in the forward and once more in the backward, and never kept in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .codes import Coded, decode, encode
from .lora import trained_layers
from .target import CannotApply, Target, Undo
from .wrapping import together, wrap

_TABLES = {"8-bit": "signed8", "4-bit": "normal4"}
# What is meant where nothing is said.
_DEFAULT = {"quantized-base": "4-bit", "quantized-weights": "8-bit"}


class _Product(torch.autograd.Function):
    """A product with a weight that is decoded for it."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, weight: Coded) -> torch.Tensor:
        ctx.weight, ctx.biased = weight, bias is not None
        return functional.linear(inputs, decode(weight, inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:  # type: ignore[override]
        to_inputs = gradient @ decode(ctx.weight, gradient.dtype) if ctx.needs_input_grad[0] else None
        to_bias = None
        if ctx.biased and ctx.needs_input_grad[1]:
            to_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
        return to_inputs, to_bias, None


def apply(target: Target, value: Any, name: str) -> Undo:
    """Code the weights of the layers that `lora` trains beside: `value` is "8-bit" or "4-bit"."""
    table = _TABLES.get(_DEFAULT[name] if value is True else value)
    if table is None:
        raise CannotApply(name, f'its value is "8-bit" or "4-bit", and not {value!r}')
    layers = trained_layers(target.model, name)
    return together([_one(layer, table, target.undoes) for layer in layers.values()])


def _one(layer: nn.Linear, table: str, undoes: bool) -> Undo:
    weight = layer.weight
    kept = weight.data.to("cpu", copy=True) if undoes else None
    trains = weight.requires_grad
    place = weight.device
    coded = encode(weight.data, table)
    # The parameter stays, so that optimizers and state dicts know its name; its numbers are in the codes.
    weight.requires_grad_(False)
    weight.grad = None
    weight.data = torch.empty(0, dtype=weight.dtype, device=place)

    def around(_forward: Callable[..., Any], inputs: torch.Tensor) -> torch.Tensor:
        bias = layer.bias
        kind = inputs.dtype
        if torch.is_autocast_enabled(inputs.device.type):
            kind = torch.get_autocast_dtype(inputs.device.type)
        elif bias is not None and bias.dtype != kind:
            kind = torch.promote_types(kind, bias.dtype)
        with torch.autocast(inputs.device.type, enabled=False):
            product: torch.Tensor = _Product.apply(
                inputs.to(kind), bias.to(kind) if bias is not None else None, coded
            )
        return product

    unwrap = wrap(layer, around)

    def undo() -> None:
        unwrap()
        before = decode(coded).cpu() if kept is None else kept
        # What was trained beside it may have been added to it meanwhile.
        added = weight.data.cpu() if weight.numel() else None
        weight.data = (before if added is None else before + added).to(place)
        weight.requires_grad_(trains)

    return undo
