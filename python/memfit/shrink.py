"""Makes a model smaller: the techniques of `memfit shrink`, and what they cost in quality.

  applied = memfit.shrink.lora(model, optimizer, rank=16)
  ...                                  # train as before
  applied.undo()                       # adapters are merged into the weights

Each function changes the model and the optimizer in place, so that schedulers, checkpoints and other
references stay valid, and returns an object whose `undo()` restores them. The levers of a plan do the same;
`memfit shrink --gpu NAME -- python train.py` measures all of them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from memfit._levers import Applied, CannotApply, Target, apply, prepared
from memfit._train.comparison import Comparison, Side, compare

__all__ = [
    "Applied",
    "CannotApply",
    "Comparison",
    "Side",
    "bf16_weights",
    "compare",
    "dora",
    "drop_in_network",
    "eight_bit_optimizer",
    "fewer_blocks",
    "float8_training",
    "lighter_convolutions",
    "lora",
    "low_rank_gradients",
    "peft_qlora",
    "prune_channels",
    "prune_masks",
    "qat",
    "qlora",
    "quantized_weights",
    "semi_structured",
    "torchao_qlora",
    "torchao_weights",
    "train_only",
]

Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


def lora(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    rank: int = 16,
    alpha: float | None = None,
    modules: Sequence[str] | None = None,
) -> Applied:
    """Freeze the model, and train LoRA adapters on its linear layers; `undo()` merges them."""
    return _apply(model, optimizer, {"lora": _adapters(rank, alpha, modules)})


def qlora(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    rank: int = 16,
    alpha: float | None = None,
    bits: Literal[4, 8] = 4,
) -> Applied:
    """Train LoRA adapters on weights that are quantized to 4 or 8 bits."""
    return _apply(model, optimizer, {"quantized-base": f"{bits}-bit", "lora": _adapters(rank, alpha, None)})


def dora(model: nn.Module, optimizer: Optimizers = None, *, rank: int = 16) -> Applied:
    """Freeze the model, and train DoRA adapters of peft; `undo()` drops them."""
    return _apply(model, optimizer, {"dora": rank})


def peft_qlora(model: nn.Module, optimizer: Optimizers = None, *, rank: int = 16) -> Applied:
    """Train LoRA adapters of peft on weights in NF4 of bitsandbytes; `undo()` drops them."""
    return _apply(model, optimizer, {"peft-qlora": rank})


def torchao_qlora(model: nn.Module, optimizer: Optimizers = None, *, rank: int = 16) -> Applied:
    """Train LoRA adapters of peft on weights in int8 of torchao; `undo()` drops them."""
    return _apply(model, optimizer, {"torchao-qlora": rank})


def train_only(model: nn.Module, part: str, optimizer: Optimizers = None) -> Applied:
    """Freeze all but a part: "head", "last-2-blocks" (any number), "biases" or "norms"."""
    return _apply(model, optimizer, {"train-only": part})


def eight_bit_optimizer(model: nn.Module, optimizer: Optimizers) -> Applied:
    """Keep the optimizer state in 8 bits between steps."""
    return _apply(model, optimizer, {"8-bit-optimizer": True})


def low_rank_gradients(model: nn.Module, optimizer: Optimizers, *, rank: int = 128) -> Applied:
    """Keep AdamW's moments of matrices in repeated blocks in a low rank (GaLore of pytorch-optimizer)."""
    return _apply(model, optimizer, {"low-rank-gradients": rank})


def bf16_weights(model: nn.Module, optimizer: Optimizers = None) -> Applied:
    """Keep weights, gradients and optimizer state in bf16; updates are rounded stochastically."""
    return _apply(model, optimizer, {"pure-bf16": True})


def quantized_weights(model: nn.Module, *, bits: Literal[4, 8] = 8) -> Applied:
    """Quantize the linear layers of a trained model for inference."""
    return _apply(model, None, {"quantized-weights": f"{bits}-bit"})


def torchao_weights(model: nn.Module, kind: Literal["int8", "fp8", "int4", "int8-int4"] = "int8") -> Applied:
    """Quantize the linear layers of a trained model for inference with torchao.

    "int4" needs weights in bf16 on a GPU. "int8-int4" is what `qat` trains for: 4-bit weights, which torchao
    keeps in 8 bits, and activations rounded to 8 bits.
    """
    return _apply(model, None, {"torchao-weights": kind})


def semi_structured(model: nn.Module) -> Applied:
    """Keep two of each four weights of linear layers (2:4 sparsity), for inference in 16 bits on a GPU."""
    return _apply(model, None, {"semi-structured": True})


def qat(model: nn.Module) -> Applied:
    """Train linear layers for 4-bit weights with torchao; quantize after `undo()`, with
    `torchao_weights(model, "int8-int4")`.
    """
    return _apply(model, None, {"qat": "int4"})


def float8_training(model: nn.Module) -> Applied:
    """Compute the products of linear layers in float8 with torchao; compile the model afterwards."""
    return _apply(model, None, {"float8-training": True})


def prune_channels(
    model: nn.Module, example: Any, optimizer: Optimizers = None, *, percent: int = 50
) -> Applied:
    """Remove channels with torch-pruning; `example` is the model's input: a tensor, a tuple of positional
    arguments or a dictionary of keyword arguments.
    """
    return _apply(model, optimizer, {"prune-channels": percent}, _call(example))


def prune_masks(model: nn.Module, optimizer: Optimizers = None, *, percent: int = 50) -> Applied:
    """Mask the smallest weights of each layer with `torch.nn.utils.prune`. This takes memory."""
    return _apply(model, optimizer, {"prune-masks": percent})


def fewer_blocks(model: nn.Module, optimizer: Optimizers = None, *, percent: int = 50) -> Applied:
    """Keep `percent` of the blocks in each sequence of equal ones, evenly spaced."""
    return _apply(model, optimizer, {"fewer-blocks": percent})


def lighter_convolutions(
    model: nn.Module,
    kind: Literal["depthwise", "grouped", "small-kernels"] = "depthwise",
    optimizer: Optimizers = None,
) -> Applied:
    """Replace convolutions with ones with fewer weights, which begin random."""
    return _apply(model, optimizer, {"lighter-convolutions": kind})


def drop_in_network(
    model: nn.Module, images: torch.Tensor, name: str, optimizer: Optimizers = None
) -> Applied:
    """Replace the layers of a classifier of images with another network, which begins random.

    `name` is that of a classifier in torchvision, or `timm/NAME` for one of timm.
    `images` is a batch that the model is called with, from which the number of classes is learnt.
    """
    return _apply(model, optimizer, {"drop-in-network": name}, _call(images))


def _call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,), {})


def _adapters(rank: int, alpha: float | None, modules: Sequence[str] | None) -> dict[str, Any]:
    given: dict[str, Any] = {"rank": rank}
    if alpha is not None:
        given["alpha"] = alpha
    if modules is not None:
        given["modules"] = list(modules)
    return given


def _apply(
    model: nn.Module,
    optimizer: Optimizers,
    levers: dict[str, Any],
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Applied:
    if optimizer is None:
        optimizers: list[torch.optim.Optimizer] = []
    elif isinstance(optimizer, torch.optim.Optimizer):
        optimizers = [optimizer]
    else:
        optimizers = list(optimizer)
    target = Target(model, optimizers, example=example)
    applied = apply(target, levers.items())
    # The caller may keep the model for long, and an example is as large as a batch.
    target.example = None
    if target.preparations:
        applied.add("inputs", prepared(target))
    return applied
