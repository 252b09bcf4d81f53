"""`semi-structured`: 2:4 sparsity. Of each four neighbouring weights of a linear layer two are kept, in
PyTorch's own format for it, for a model that is not trained.

Only the CUTLASS format is used: the workspace of cuSPARSELt's kernels cannot be known without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import Stage, lever
from .replacing import layers_of
from .target import CannotApply, Target, Undo
from .torchao_weights import drop_from
from .transposed import as_linear
from .wrapping import together

# Minimum numbers of rows and columns of a 16-bit matrix, which must also be multiples of these.
ROWS, COLUMNS = 32, 64


@lever("semi-structured", Stage.MODEL, 62, inference=True)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Keep the two largest of each four weights; `value` is `True`."""
    try:
        from torch.sparse import SparseSemiStructuredTensorCUTLASS
    except ImportError as error:
        raise CannotApply(
            name, "this PyTorch version has no 2:4 sparsity; 2.2 is the first that does"
        ) from error
    turned = as_linear(target)
    layers = [
        layer
        for layer in layers_of(target.model, nn.Linear)
        if layer.out_features % ROWS == 0 and layer.in_features % COLUMNS == 0
    ]
    try:
        _refuse(layers, name)
    except CannotApply:
        turned()
        raise
    kept = [(layer, layer.weight) for layer in layers]
    for layer, weight in kept:
        with torch.no_grad():
            sparse = SparseSemiStructuredTensorCUTLASS.from_dense(pruned(weight.detach()))
        layer.weight = nn.Parameter(sparse, requires_grad=False)
    if not target.undoes:
        drop_from(target.optimizers, [weight for _, weight in kept])
        kept.clear()

    def undo() -> None:
        for layer, weight in kept:
            layer.weight = weight

    return together([turned, undo])


def _refuse(layers: list[nn.Linear], name: str) -> None:
    """Raise `CannotApply` unless the kernels take these layers."""
    if not layers:
        raise CannotApply(
            name, f"the model has no linear layers with sides that are multiples of {ROWS} and {COLUMNS}"
        )
    if any(layer.weight.dtype not in (torch.float16, torch.bfloat16) for layer in layers):
        raise CannotApply(name, "2:4 sparsity needs weights in 16 bits: apply `pure-bf16` first")
    if any(layer.weight.device.type != "cuda" for layer in layers):
        raise CannotApply(name, "2:4 sparsity needs the model on a GPU")
    if torch.cuda.get_device_capability(layers[0].weight.device)[0] != 8:
        raise CannotApply(
            name,
            "PyTorch's CUTLASS kernels for 2:4 sparsity run on GPUs of compute capability 8.x only; those of "
            "cuSPARSELt, for others, take a workspace that is not known without such a GPU",
        )


def pruned(weight: torch.Tensor) -> torch.Tensor:
    """Set the two smallest of each four neighbouring weights of a row to zero."""
    fours = weight.reshape(-1, 4)
    smallest = fours.abs().topk(2, dim=1, largest=False).indices
    return fours.scatter(1, smallest, 0).reshape(weight.shape)
