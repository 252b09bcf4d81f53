"""`low-rank-gradients`: GaLore, by the library pytorch-optimizer. The gradients of the matrices in the
repeated blocks are projected to a low rank, in which AdamW keeps its moments; all weights are trained.

Every 200 steps the projections are computed from a singular value decomposition of each gradient, which takes
time, and memory in addition to the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .alone import of_torch, plain_step
from .blocks import blocks
from .lora import trained_layers
from .pieces import step_for_scheduler, taken_over
from .registry import Stage, lever
from .target import CannotApply, Target, Undo, needs, table
from .wrapping import all_or_none

# Steps between two projections, and the share of a projected update, as published.
GAP, SCALE = 200, 0.25
_SHARED = ("lr", "betas", "eps", "weight_decay")
# Number of steps of a group: part of it, so that checkpoints have it.
_STEPS = "low_rank_steps"


@lever("low-rank-gradients", Stage.OPTIMIZER, 15)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Project gradients; `value` is the rank. The optimizer state starts empty, and again after the undo."""
    rank = table(value, "rank").get("rank", 128)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise CannotApply(name, f"the rank must be at least 1, got {rank!r}")
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    with needs(name, "pytorch-optimizer"):
        from pytorch_optimizer import GaLore
    low = {each for each in _matrices(target.model, name) if each.requires_grad and min(each.shape) > rank}
    if not low:
        raise CannotApply(name, f"no matrix in the model's repeated blocks has both sides above {rank}")
    return all_or_none(_one(optimizer, low, rank, GaLore, name) for optimizer in target.optimizers)


def _matrices(model: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the matrices of the repeated blocks, or else of all linear layers but the last."""
    inside = {each for path in blocks(model) for each in model.get_submodule(path).modules()}
    own = [
        each for one in inside if not isinstance(one, nn.Embedding) for each in one.parameters(recurse=False)
    ]
    found = [each for each in own if each.dim() == 2]
    return found or [layer.weight for layer in trained_layers(model, name).values()]


def _one(optimizer: torch.optim.Optimizer, low: set[nn.Parameter], rank: int, galore: Any, name: str) -> Undo:
    kind, groups = type(optimizer), optimizer.param_groups
    own = of_torch(kind)
    coupled = own == "Adam" and any(
        group.get("weight_decay") and not group.get("decoupled_weight_decay") for group in groups
    )
    if own not in ("Adam", "AdamW") or coupled:
        why = "Adam with weight decay in the gradient" if coupled else kind.__name__
        raise CannotApply(name, f"it is a form of AdamW, and would be another optimizer than {why}")
    if any(group.get("amsgrad") or group.get("maximize") for group in groups):
        raise CannotApply(name, "GaLore has neither `amsgrad` nor `maximize`")
    if taken_over(optimizer) is not None:
        raise CannotApply(name, "another lever (such as `pure-bf16`) runs this optimizer's updates")
    # Only its step is used: a completely constructed optimizer would be taken for one of the script's.
    inner = object.__new__(galore)
    inner.maximize, update = False, plain_step(galore)

    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        inner.state = self.state
        for group in self.param_groups:
            group[_STEPS] = steps = group.get(_STEPS, 0) + 1
            inner.param_groups = _parts(group, low, rank, steps - 1)
            update(inner)
        return loss

    state = dict(optimizer.state)
    in_front = optimizer.__dict__.pop("step", None)
    optimizer.__class__ = type(f"GaLore{kind.__name__}", (kind,), {"step": step, "__module__": __name__})
    optimizer._patch_step_function()
    optimizer.state.clear()
    if in_front is not None:
        optimizer.step = step_for_scheduler(optimizer)  # type: ignore[method-assign]

    def undo() -> None:
        optimizer.__dict__.pop("step", None)
        optimizer.__class__ = kind
        optimizer.state.clear()
        optimizer.state.update(state)
        for group in optimizer.param_groups:
            group.pop(_STEPS, None)
        if in_front is not None:
            optimizer.step = in_front  # type: ignore[method-assign]

    return undo


def _parts(group: dict[str, Any], low: set[nn.Parameter], rank: int, steps: int) -> list[dict[str, Any]]:
    """Return a group in two: the parameters with projected gradients, and all others."""
    shared = {**{key: group[key] for key in _SHARED}, "foreach": False, "step": steps}
    projected = {"rank": rank, "update_proj_gap": GAP, "scale": SCALE, "projection_type": "std"}
    parts = [
        {**shared, **projected, "params": [each for each in group["params"] if each in low]},
        {**shared, "params": [each for each in group["params"] if each not in low]},
    ]
    return [part for part in parts if part["params"]]
