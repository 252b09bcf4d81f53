"""`torchao-weights`: the weights of linear layers quantized by the library torchao, for a model that is not
trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .target import CannotApply, Target, Undo


@lever("torchao-weights", Stage.MODEL, 25, inference=True)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Quantize weights: `value` is "int8" or "fp8"."""
    if value not in ("int8", "fp8"):
        raise CannotApply(name, f'the value is "int8" or "fp8", got {value!r}')
    try:
        from torchao import quantization
    except ImportError as error:
        raise CannotApply(name, "torchao is not installed: `pip install torchao`") from error
    layers = [module for module in target.model.modules() if type(module) is nn.Linear]
    if not layers:
        raise CannotApply(name, "the model has no linear layers")
    kept = [(layer, layer.weight, layer.weight.data) for layer in layers]
    config = (
        quantization.Int8WeightOnlyConfig(version=2)
        if value == "int8"
        else quantization.Float8WeightOnlyConfig()
    )
    try:
        with _without_gradients(target.model):
            quantization.quantize_(target.model, config)
    except Exception as error:
        _restore(kept)
        raise CannotApply(name, f"torchao refuses: {type(error).__name__}: {error}") from error
    if not target.undoes:
        _release(target.optimizers, kept)
        return lambda: None
    return lambda: _restore(kept)


@contextlib.contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Quantize under `no_grad`, in the training mode that the modules have."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _restore(kept: list[tuple[nn.Linear, nn.Parameter, torch.Tensor]]) -> None:
    for layer, weight, data in kept:
        weight.data = data
        layer.weight = weight


def _release(
    optimizers: list[torch.optim.Optimizer], kept: list[tuple[nn.Linear, nn.Parameter, torch.Tensor]]
) -> None:
    """Free weights that only an optimizer of the script still holds."""
    replaced = {id(weight) for layer, weight, _ in kept if layer.weight is not weight}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) not in replaced]
    kept.clear()
