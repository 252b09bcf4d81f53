"""`fused-optimizer`, `foreach-off`: how many parameters an optimizer updates at once, and with what
temporaries.

The default writes whole lists of temporaries, about as large as the parameters. A fused kernel has none; one
parameter at a time has those of the largest.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from .alone import of_torch
from .pieces import taken_over
from .registry import Stage, lever
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none

# What optimizers remember after the first fused step.
_CHECKED = "_need_device_dtype_check_for_fused"
# What tells a scaler that the step divides gradients itself.
_SCALING = "_step_supports_amp_scaling"


@lever("foreach-off", Stage.OPTIMIZER, 20)
@lever("fused-optimizer", Stage.OPTIMIZER, 30)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Set it in each of the optimizers' groups; its value is true."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    return all_or_none(_one(optimizer, name) for optimizer in target.optimizers)


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
        taken = taken_over(optimizer)
        if not of_torch(taken.kind if taken is not None else type(optimizer)) and not optimizer.__dict__.get(
            _SCALING
        ):
            # A scaler leaves it to a fused kernel to divide gradients, which nothing else does.
            raise CannotApply(name, f"{kind} has a step of its own, which need not be that of the kernel")
    before = [(group.get("foreach"), group.get("fused")) for group in optimizer.param_groups]
    had = optimizer.__dict__.get(_SCALING)
    checked = _CHECKED in optimizer.__dict__

    def set_to(_optimizer: Any = None) -> None:
        for group in optimizer.param_groups:
            group["foreach"] = False
            if "fused" in group:
                group["fused"] = fused
        if fused:
            setattr(optimizer, _SCALING, True)
            steps_on(optimizer, host=False)
        else:
            optimizer.__dict__.pop(_SCALING, None)
            if had:
                steps_on(optimizer, host=True)

    def put_back(groups: list[dict[str, Any]]) -> None:
        # One that was added since is as those are that say nothing of it.
        usual = optimizer.defaults.get("foreach"), optimizer.defaults.get("fused")
        for group, (foreach, was_fused) in itertools.zip_longest(groups, before, fillvalue=usual):
            if isinstance(group, dict):
                group["foreach"] = foreach
                if "fused" in group:
                    group["fused"] = was_fused

    def save(_optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        # A checkpoint is as it would be without the lever, which whoever goes on from it may not have.
        groups = [dict(group) for group in saved["param_groups"]]
        put_back(groups)
        return {**saved, "param_groups": groups}

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        put_back(optimizer.param_groups)
        if had is None:
            optimizer.__dict__.pop(_SCALING, None)
        else:
            setattr(optimizer, _SCALING, had)
        if not checked:
            optimizer.__dict__.pop(_CHECKED, None)
        steps_on(optimizer, host=True)

    # A checkpoint that is loaded brings its own settings.
    hooks = [
        optimizer.register_load_state_dict_post_hook(set_to),
        optimizer.register_state_dict_post_hook(save),
    ]
    try:
        set_to()
    except BaseException:
        undo()
        raise
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
