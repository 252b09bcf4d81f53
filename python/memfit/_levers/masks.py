"""`prune-masks`: the smallest weights are masked with zeros by `torch.nn.utils.prune`.

The weights keep their size, a mask of the same size is stored for each, and their product is computed in
every forward pass. Memory grows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn
from torch.nn.utils import prune

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, percentage
from .transposed import is_transposed
from .wrapping import together

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@lever("prune-masks", Stage.MODEL, 54)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Mask the smallest weights of each layer: `value` is a percentage."""
    share = percentage(value, name)
    uses = Counter(id(each) for module in target.model.modules() for each in module._parameters.values())
    layers = [
        module
        for module in target.model.modules()
        # Subclasses may be used without a call, by attention for example, and a mask needs the call's hook.
        if (type(module) in _LAYERS or is_transposed(module))
        and uses[id(module._parameters.get("weight"))] == 1
    ]
    if not layers:
        raise CannotApply(name, "the model has no linear or convolution layers with weights of their own")
    return together([_one(layer, share / 100) for layer in layers])


def _one(layer: nn.Module, share: float) -> Undo:
    order = list(layer._parameters)
    prune.l1_unstructured(layer, "weight", amount=share)

    def undo() -> None:
        for key, hook in list(layer._forward_pre_hooks.items()):
            if isinstance(hook, prune.BasePruningMethod) and hook._tensor_name == "weight":
                del layer._forward_pre_hooks[key]
        del layer._buffers["weight_mask"]
        del layer.__dict__["weight"]
        found = {**layer._parameters, "weight": layer._parameters["weight_orig"]}
        layer._parameters.clear()
        layer._parameters.update({key: found[key] for key in order})

    return undo
