"""`torchao-weights`: the weights of linear layers quantized by the library torchao, for a model that is not
trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .qat import GROUP_SIZE
from .registry import Stage, lever
from .replacing import unshared
from .target import CannotApply, Target, Undo, needs
from .transposed import as_linear
from .wrapping import together

KINDS = ("int8", "fp8", "int4", "int8-int4")


@lever("torchao-weights", Stage.MODEL, 61, inference=True)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Quantize weights: `value` is "int8", "fp8", "int4" for bf16 models on a GPU, or "int8-int4", which is
    what `qat` trains for.
    """
    if value not in KINDS:
        raise CannotApply(name, f"the value must be one of {', '.join(KINDS)}, got {value!r}")
    with needs(name, "torchao"):
        from torchao import quantization
    turned = as_linear(target)
    # A weight that the embeddings share would be there twice, once quantized.
    layers = list(unshared(target.model, nn.Linear).values())
    if value in ("int4", "int8-int4"):
        layers = [layer for layer in layers if layer.in_features % GROUP_SIZE == 0]
    try:
        if not layers:
            raise CannotApply(name, "the model has no linear layers that torchao could quantize")
        if value == "int4" and any(layer.weight.dtype != torch.bfloat16 for layer in layers):
            raise CannotApply(name, "torchao's int4 kernels need weights in bf16: apply `pure-bf16` first")
        restore = quantized(target, layers, _config(quantization, value), name)
    except CannotApply:
        turned()
        raise
    return together([turned, restore])


def quantized(target: Target, layers: list[nn.Linear], config: Any, name: str) -> Undo:
    """Quantize the weights of these layers."""
    from torchao.quantization import quantize_

    kept = [(layer, layer.weight, layer.weight.data) for layer in layers]
    chosen = {id(layer) for layer in layers}
    try:
        with _without_gradients(target.model):
            quantize_(target.model, config, lambda module, _path: id(module) in chosen)
    except Exception as error:
        _restore(kept)
        raise CannotApply(name, f"torchao refuses: {type(error).__name__}: {error}") from error
    for layer in layers:
        # A description of the weight that cannot be pickled: the model could not be saved as a whole.
        layer.__dict__.pop("extra_repr", None)
    if not target.undoes:
        drop_from(target.optimizers, [weight for layer, weight, _ in kept if layer.weight is not weight])
        kept.clear()
        return lambda: None
    return lambda: _restore(kept)


def _config(quantization: Any, value: str) -> Any:
    if value == "int8":
        return quantization.Int8WeightOnlyConfig(version=2)
    if value == "fp8":
        return quantization.Float8WeightOnlyConfig()
    if value == "int4":
        # The only format whose kernels are PyTorch's own.
        return quantization.Int4WeightOnlyConfig(
            group_size=GROUP_SIZE, int4_packing_format="tile_packed_to_4d", version=2
        )
    return quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=quantization.PerGroup(GROUP_SIZE)
    )


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


def drop_from(optimizers: list[torch.optim.Optimizer], replaced: list[nn.Parameter]) -> None:
    """Free weights that only an optimizer of the script still holds."""
    gone = {id(weight) for weight in replaced}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) not in gone]
