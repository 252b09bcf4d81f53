"""`fused-optimizer`, `foreach-off`: how many parameters an optimizer updates at once, and with what temporaries.

The default writes whole lists of temporaries, about as large as the parameters. A fused kernel has none; one parameter at a
time has those of the largest.
"""

from __future__ import annotations

from typing import Any

import torch

from .target import CannotApply, Target, Undo

# What optimizers remember after the first fused step.
_CHECKED = "_need_device_dtype_check_for_fused"


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Set it in each of the optimizers' groups; its value is true."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    undone = [_one(optimizer, name) for optimizer in target.optimizers]

    def undo() -> None:
        for each in reversed(undone):
            each()

    return undo


def _one(optimizer: torch.optim.Optimizer, name: str) -> Undo:
    fused = name == "fused-optimizer"
    key = "fused" if fused else "foreach"
    kind = type(optimizer).__name__
    if any(key not in group for group in optimizer.param_groups):
        raise CannotApply(name, f"{kind} has no `{key}`")
    if fused:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not all(torch.is_floating_point(parameter) for parameter in parameters):
            raise CannotApply(name, f"{kind}'s fused kernel takes real numbers only")
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise CannotApply(name, f"{kind} is differentiable, which its fused kernel is not")
    before = [(group, group.get("foreach"), group.get("fused")) for group in optimizer.param_groups]
    scaling = "_step_supports_amp_scaling"
    had = optimizer.__dict__.get(scaling)
    checked = _CHECKED in optimizer.__dict__
    for group in optimizer.param_groups:
        group["foreach"] = False
        if "fused" in group:
            group["fused"] = fused
    if fused:
        setattr(optimizer, scaling, True)
        steps_on(optimizer, host=False)
    else:
        optimizer.__dict__.pop(scaling, None)

    def undo() -> None:
        for group, foreach, was_fused in before:
            group["foreach"] = foreach
            if "fused" in group:
                group["fused"] = was_fused
        if had is None:
            optimizer.__dict__.pop(scaling, None)
        else:
            setattr(optimizer, scaling, had)
        if not checked:
            optimizer.__dict__.pop(_CHECKED, None)
        steps_on(optimizer, host=True)

    return undo


def steps_on(optimizer: torch.optim.Optimizer, host: bool) -> None:
    """Fused kernels count steps on the device, others on the host: move the counters that are there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            step = state.get("step") if state else None
            if isinstance(step, torch.Tensor):
                stays = host and not (group.get("fused") or group.get("capturable"))
                state["step"] = step.to("cpu" if stays else parameter.device)
