"""`train-only`: a part of the model is trained, and the rest is frozen.

Frozen parameters have neither gradients nor optimizer state, and autograd keeps no activations in front of
the first trained layer. They stay in the optimizer's groups, which skip parameters without a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .blocks import blocks
from .lora import behind
from .registry import Stage, lever
from .several import models
from .target import CannotApply, Target, Undo

_LAST_BLOCKS = re.compile(r"last-([1-9]\d*)-blocks?")


@lever("train-only", Stage.MODEL, 52)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Freeze all parameters but those of `value`: "head", "last-2-blocks", "biases" or "norms"."""
    if any(isinstance(each, nn.parallel.DistributedDataParallel) for each in target.models()):
        raise CannotApply(name, "DDP waits for the gradients of all parameters that it was created with")
    kept = {id(each) for each in _chosen(target.model, value, name)}
    trained = [each for each in target.model.parameters() if each.requires_grad]
    frozen = [each for each in trained if id(each) not in kept]
    if len(frozen) == len(trained):
        raise CannotApply(name, f"the model has no {value} that are trained")
    if not frozen:
        raise CannotApply(name, f"the model trains nothing but its {value} already")
    states = [
        (optimizer, each, optimizer.state.pop(each))
        for optimizer in target.optimizers
        for each in frozen
        if each in optimizer.state
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None

    def undo() -> None:
        for parameter in frozen:
            parameter.requires_grad_(True)
        for optimizer, parameter, state in states:
            optimizer.state[parameter] = state

    return undo


def _chosen(model: nn.Module, value: Any, name: str) -> Iterator[nn.Parameter]:
    """Yield the parameters that are trained.

    Biases, norms and blocks are trained with the layers behind the repeated blocks, such as a new classifier,
    as with LoRA adapters.
    """
    if value == "head":
        for each in models(model):
            yield from head(each)
        return
    last = _LAST_BLOCKS.fullmatch(value) if isinstance(value, str) else None
    if last is not None:
        found = blocks(model)
        if len(found) <= int(last[1]):
            raise CannotApply(name, f"the model has {len(found)} repeated blocks")
        for path in found[-int(last[1]) :]:
            yield from model.get_submodule(path).parameters()
    elif value == "biases":
        yield from (each for path, each in model.named_parameters() if path.split(".")[-1] == "bias")
    elif value == "norms":
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                yield from module.parameters(recurse=False)
    else:
        raise CannotApply(
            name, f'the value must be "head", "last-2-blocks", "biases" or "norms", got {value!r}'
        )
    yield from behind(model, {})


def head(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the last layer with a matrix or filters, and of the layers after it."""
    order = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    last = max((place for place, module in enumerate(order) if _is_layer(module)), default=len(order))
    return [each for module in order[last:] for each in module.parameters(recurse=False)]


def _is_layer(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return isinstance(weight, torch.Tensor) and weight.dim() > 1 and not isinstance(module, nn.Embedding)
