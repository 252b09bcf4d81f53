"""`quantized-base`: the frozen weights under LoRA adapters, in 8 or 4 bits. `quantized-weights`: the same for
a model that is not trained.

A weight is dequantised when it is used, in the forward pass and again in the backward pass, and never kept in
between. State dicts contain dequantised weights, in host memory; loaded weights are quantised layer by layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .codes import Coded, decode, encode
from .lora import trained_layers
from .registry import Stage, lever
from .target import CannotApply, Target, Undo
from .transposed import is_transposed
from .wrapping import together, wrap

_TABLES = {"8-bit": "signed8", "4-bit": "normal4"}
# Precision if the value is `True`.
_DEFAULT = {"quantized-base": "4-bit", "quantized-weights": "8-bit"}


class _Product(torch.autograd.Function):
    """A linear layer's product with a quantised weight."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, weight: Coded, turned: bool
    ) -> torch.Tensor:
        ctx.weight, ctx.biased, ctx.turned = weight, bias is not None, turned
        return functional.linear(inputs, _matrix(weight, inputs.dtype, turned), bias)

    @staticmethod
    def backward(
        ctx: Any,
        gradient: torch.Tensor,  # type: ignore[override]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        weight = _matrix(ctx.weight, gradient.dtype, ctx.turned) if ctx.needs_input_grad[0] else None
        to_inputs = gradient @ weight if weight is not None else None
        del weight
        to_bias = None
        if ctx.biased and ctx.needs_input_grad[1]:
            to_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
        return to_inputs, to_bias, None, None


def _matrix(weight: Coded, dtype: torch.dtype, turned: bool) -> torch.Tensor:
    """Dequantise a weight; its rows are outputs."""
    matrix = decode(weight, dtype)
    return matrix.t() if turned else matrix


@lever("quantized-base", Stage.MODEL, 10)
@lever("quantized-weights", Stage.MODEL, 20, inference=True)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Quantise the weights of the layers that can have a LoRA adapter: `value` is "8-bit" or "4-bit"."""
    table = _TABLES.get(_DEFAULT[name] if value is True else value)
    if table is None:
        raise CannotApply(name, f'the value must be "8-bit" or "4-bit", got {value!r}')
    layers = trained_layers(target.model, name)
    return together([_one(layer, table, name, target.undoes) for layer in layers.values()])


_BASE = "_memfit_base"


class _Base:
    """A layer's quantised weight, and the original if it is kept for the undo."""

    def __init__(self, coded: Coded, kept: torch.Tensor | None) -> None:
        self.coded = coded
        self.kept = kept

    def __deepcopy__(self, memo: dict[int, Any]) -> _Base:
        # Copies are never undone.
        return _Base(copy.deepcopy(self.coded, memo), None)


def _one(layer: Any, table: str, name: str, undoes: bool) -> Undo:
    weight = layer.weight
    trains = weight.requires_grad
    place = weight.device
    base = _Base(encode(weight.data, table), weight.data.to("cpu", copy=True) if undoes else None)
    layer.__dict__[_BASE] = base
    # The parameter stays, empty, so that optimizers and state dicts find its name.
    weight.requires_grad_(False)
    weight.grad = None
    weight.data = torch.empty(0, dtype=weight.dtype, device=place)

    def around(called: Any, _forward: Callable[..., Any], inputs: torch.Tensor) -> torch.Tensor:
        bias, coded = called.bias, getattr(called, _BASE).coded
        if coded.codes.device != inputs.device:
            # The module was moved in the meantime.
            coded = coded.to(inputs.device)
            getattr(called, _BASE).coded = coded
        kind = inputs.dtype
        if torch.is_autocast_enabled(inputs.device.type):
            kind = torch.get_autocast_dtype(inputs.device.type)
        elif bias is not None and bias.dtype != kind:
            kind = torch.promote_types(kind, bias.dtype)
        with torch.autocast(inputs.device.type, enabled=False):
            product: torch.Tensor = _Product.apply(
                inputs.to(kind), bias.to(kind) if bias is not None else None, coded, is_transposed(called)
            )
        return product

    unwrap = wrap(layer, around, name)
    hooks = [
        layer.register_state_dict_post_hook(_in_full),
        layer.register_load_state_dict_pre_hook(_in_codes),
    ]

    def undo() -> None:
        unwrap()
        for hook in hooks:
            hook.remove()
        del layer.__dict__[_BASE]
        before = decode(base.coded).cpu() if base.kept is None else base.kept
        # A LoRA adapter may have been merged into it.
        added = weight.data.cpu() if weight.numel() else None
        weight.data = (before if added is None else before + added).to(weight.device)
        weight.requires_grad_(trains)

    return undo


def _in_full(layer: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Save the dequantised weight under its original name and shape."""
    if f"{prefix}weight" in state:
        # The dequantised weights together may not fit on the GPU.
        state[f"{prefix}weight"] = decode(getattr(layer, _BASE).coded).cpu()


def _in_codes(layer: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Quantise a loaded weight."""
    base, name = getattr(layer, _BASE), f"{prefix}weight"
    loaded = state.get(name)
    if not isinstance(loaded, torch.Tensor):
        return
    before: Coded = base.coded
    state[name] = layer.weight
    if loaded.shape != before.shape:
        rest[-1].append(
            f"size mismatch for {name}: {loaded.shape} in the checkpoint, {before.shape} in the model."
        )
        return
    wanted = loaded.detach().to(before.codes.device, before.dtype)
    base.coded = encode(wanted, before.table)
    base.kept = wanted.to("cpu", copy=True) if base.kept is not None else None
