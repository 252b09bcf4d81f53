"""`fused-optimizer`, `foreach-off`: the optimizer's implementation, which determines its temporaries.

The default (`foreach`) needs temporaries for all parameters at once, about as large as the parameters. A
fused kernel needs none; updating one parameter at a time needs temporaries for one parameter.
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

# The attribute that optimizers set after the first fused step.
_CHECKED = "_need_device_dtype_check_for_fused"
# Tells a gradient scaler that the step unscales gradients itself.
_SCALING = "_step_supports_amp_scaling"


@lever("foreach-off", Stage.OPTIMIZER, 20)
@lever("fused-optimizer", Stage.OPTIMIZER, 30)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Set `fused` or `foreach` in all parameter groups; the value is always true."""
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
            raise CannotApply(name, f"{kind}'s fused kernel supports real floating-point parameters only")
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise CannotApply(name, f"{kind} with `differentiable=True` has no fused kernel")
        taken = taken_over(optimizer)
        if not of_torch(taken.kind if taken is not None else type(optimizer)) and not optimizer.__dict__.get(
            _SCALING
        ):
            # A scaler expects a fused kernel to unscale the gradients, and nothing else would do it.
            raise CannotApply(name, f"{kind} has a step of its own, which may ignore `fused=True`")
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
        # A group added since gets the default settings.
        usual = optimizer.defaults.get("foreach"), optimizer.defaults.get("fused")
        for group, (foreach, was_fused) in itertools.zip_longest(groups, before, fillvalue=usual):
            if isinstance(group, dict):
                group["foreach"] = foreach
                if "fused" in group:
                    group["fused"] = was_fused

    def save(_optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        # A checkpoint is saved without the lever's settings, since it may be loaded without the lever.
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

    # A loaded checkpoint brings its own settings.
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
    """Move existing step counters: fused kernels count on the device, others on the host."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            step = state.get("step") if state else None
            if isinstance(step, torch.Tensor):
                stays = host and not (group.get("fused") or group.get("capturable"))
                state["step"] = step.to("cpu" if stays else parameter.device)
