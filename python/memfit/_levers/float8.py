"""`float8-training`: products of linear layers in float8, by the library torchao.

Weights and saved activations keep their precision, and each product casts its inputs: without a compiler that
fuses the casts this takes memory. It is for speed, on GPUs with float8.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .registry import Stage, lever
from .replacing import layers_of, replace
from .target import CannotApply, Target, Undo, needs
from .transposed import as_linear
from .wrapping import together

# The sides of matrices that the float8 product takes are multiples of this.
MULTIPLE = 16


@lever("float8-training", Stage.MODEL, 56)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Compute in float8; `value` is `True`."""
    with needs(name, "torchao"):
        from torchao.float8.float8_linear import Float8Linear
    turned = as_linear(target)
    layers = [
        layer
        for layer in layers_of(target.model, nn.Linear)
        if layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
    ]
    if not layers:
        turned()
        raise CannotApply(name, f"the model has no linear layers whose sides are multiples of {MULTIPLE}")
    # The layer's parameters are shared, so optimizers need no change.
    return together(
        [turned, replace(target.model, {layer: Float8Linear.from_float(layer) for layer in layers})]
    )
