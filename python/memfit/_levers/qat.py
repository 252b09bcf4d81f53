"""`qat`: quantization-aware training of linear layers with the library torchao.

The weights stay in full precision. Each forward pass rounds them to 4 bits and the activations to 8 bits, as
the quantized model would, and saves additional tensors for the backward pass, so training needs more memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .replacing import layers_of, replace
from .target import CannotApply, Target, Undo, needs
from .transposed import as_linear
from .wrapping import together

# Number of weights in a row that share a scale, as in torchao's examples.
GROUP_SIZE = 32


@lever("qat", Stage.MODEL, 53)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Round in the forward pass; `value` is "int4". The undo keeps the trained weights in full precision."""
    if value not in ("int4", True):
        raise CannotApply(name, f'the value must be "int4", got {value!r}')
    with needs(name, "torchao"):
        from torchao.quantization.qat import IntxFakeQuantizeConfig
        from torchao.quantization.qat.linear import FakeQuantizedLinear
    turned = as_linear(target)
    layers = [layer for layer in layers_of(target.model, nn.Linear) if layer.in_features % GROUP_SIZE == 0]
    if not layers:
        turned()
        raise CannotApply(name, f"the model has no linear layers whose inputs are a multiple of {GROUP_SIZE}")
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=GROUP_SIZE, is_symmetric=True)
    # The layer's parameters are shared, so optimizers need no change.
    replaced = replace(
        target.model,
        {layer: FakeQuantizedLinear.from_linear(layer, activations, weights) for layer in layers},
    )
    return together([turned, replaced])
