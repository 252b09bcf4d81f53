"""`adafactor`: second moments per row and column instead of per element, and no first moments. This is
another optimizer.
"""

from __future__ import annotations

from typing import Any

import torch

from .pieces import step_for_scheduler, taken_over
from .registry import Stage, lever
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none

# Settings with the same meaning in both optimizers.
_SHARED = ("lr", "weight_decay", "maximize", "foreach")


@lever("adafactor", Stage.OPTIMIZER, 10)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Turn each optimizer into an Adafactor in place; `value` is `True`. The optimizer state starts empty,
    and again after the undo.
    """
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    if not hasattr(torch.optim, "Adafactor"):
        raise CannotApply(name, "this PyTorch version has no Adafactor; 2.5 is the first that does")
    return all_or_none(_one(optimizer, name) for optimizer in target.optimizers)


def _one(optimizer: torch.optim.Optimizer, name: str) -> Undo:
    if taken_over(optimizer) is not None:
        raise CannotApply(
            name,
            ("another lever (such as `pure-bf16`) runs this optimizer's updates, and would stop doing so"),
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter.is_complex() or not parameter.numel() for parameter in parameters):
        raise CannotApply(name, "Adafactor supports no complex and no empty parameters")
    kind, defaults, state = type(optimizer), optimizer.defaults, dict(optimizer.state)
    groups = [dict(group) for group in optimizer.param_groups]
    made = torch.optim.Adafactor(
        [dict(_shared(group), params=group["params"]) for group in groups], **_shared(defaults)
    )
    in_front = optimizer.__dict__.pop("step", None)
    optimizer.__class__ = torch.optim.Adafactor
    optimizer._patch_step_function()
    optimizer.defaults = made.defaults
    optimizer.state.clear()
    for group, new in zip(optimizer.param_groups, made.param_groups, strict=True):
        # Entries that others keep in a group, such as schedulers, stay.
        for key in set(group) & set(defaults) - set(new):
            del group[key]
        group.update({key: value for key, value in new.items() if key != "params"})
    if in_front is not None:
        optimizer.step = step_for_scheduler(optimizer)  # type: ignore[method-assign]

    def undo() -> None:
        optimizer.__dict__.pop("step", None)
        optimizer.__class__ = kind
        optimizer.defaults = defaults
        optimizer.state.clear()
        optimizer.state.update(state)
        # A group added since gets the optimizer's default settings.
        added = [dict(defaults)] * (len(optimizer.param_groups) - len(groups))
        for group, before in zip(optimizer.param_groups, [*groups, *added], strict=True):
            rate = group["lr"]
            for key in set(made.defaults) - set(before):
                group.pop(key, None)
            group.update({key: value for key, value in before.items() if key != "params"})
            # The scheduler went on in the meantime.
            group["lr"] = rate
        if in_front is not None:
            optimizer.step = in_front  # type: ignore[method-assign]

    return undo


def _shared(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in _SHARED if key in group}
