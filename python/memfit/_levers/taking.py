"""What an operation makes of what was taken over a batch: a mean over its samples, a sum, or something that
is neither.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

# What leaves a mean a mean, whether it is of one number or of several side by side.
_LINEAR = {
    *(
        "add",
        "sub",
        "rsub",
        "neg",
        "stack",
        "cat",
        "sum",
        "mean",
        "clone",
        "detach",
        "alias",
        "_to_copy",
        "nan_to_num",
    ),
    *(
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "squeeze",
        "unsqueeze",
        "expand",
        "select",
        "slice",
        "unbind",
    ),
    *("split", "permute", "transpose", "t", "lift_fresh"),
}
_NONE, _MEAN = 0, 1
# Of batches whose samples were selected by a mask.
SELECTED = object()


class Taken(IntEnum):
    """What was taken over a batch, the least like a mean last."""

    MEAN = 0
    SUM = 1
    OTHER = 2


def fused(
    schema: Any,
    args: Any,
    outputs: list[torch.Tensor],
    items: int,
    label: Callable[[torch.Tensor, int], bool],
) -> Taken | None:
    """What an operation takes over the batch that is a loss by itself; None for others. `label` is told of
    labels, and of the one that is ignored; whether it will look at them in all parts.
    """
    names = [argument.name for argument in schema.arguments]
    if "reduction" not in names or outputs[0].dim() > 0:
        return None
    given = dict(zip(names, args, strict=False))
    how = given.get("reduction", _MEAN)
    if how != _MEAN:
        return None if how == _NONE else Taken.SUM
    if "ignore_index" not in names:
        return Taken.MEAN
    if given.get("weight") is not None:
        return Taken.OTHER
    target, ignored = given["target"], int(given.get("ignore_index", -100))
    if label(target, ignored) or target.numel() % items:
        return Taken.MEAN
    counted = (target != ignored).reshape(items, -1).sum(1)
    return Taken.MEAN if bool((counted == counted[0]).all()) else Taken.OTHER


def selects(name: str, args: Any) -> bool:
    """Whether an operation lets through what a mask says."""
    masks = [args[1]] if name == "masked_select" else args[1] if name == "index" else []
    return any(isinstance(mask, torch.Tensor) and mask.dtype is torch.bool for mask in masks)


def of_selected(name: str, output: torch.Tensor) -> Any:
    """What comes of entries that were selected: how many they are differs from part to part."""
    if name == "sum" and output.dim() == 0:
        return Taken.SUM
    return Taken.OTHER if output.dim() == 0 else SELECTED


def is_even(counted: torch.Tensor, items: int) -> bool:
    """Whether a mask, or numbers, are as many in each sample."""
    if counted.requires_grad or counted.numel() == 0 or counted.numel() % items:
        return False
    each = counted.detach().reshape(items, -1).sum(1)
    return bool((each == each[0]).all())


def combined(name: str, args: Any, known: Any, even: Any, read: list[float], items: int) -> Taken:
    """What comes of what was taken over the batch already; `even` has the sums to which each sample gave as
    much.
    """
    flat = [each for value in args for each in (value if isinstance(value, (list, tuple)) else [value])]
    taken = [known[value] for value in flat if isinstance(value, torch.Tensor) and value in known]
    worst = max(taken)
    if name in _LINEAR:
        return worst
    if name == "div" and _is_known(args[1], even) and _taken(args[0], known) in (None, Taken.SUM):
        # By a number to which each sample adds as much.
        return Taken.MEAN
    if name not in ("mul", "div") or len(taken) > 1 or (name == "div" and not _is_known(args[0], known)):
        return Taken.OTHER
    other = args[1] if _is_known(args[0], known) else args[0]
    if worst is not Taken.SUM:
        return worst
    if isinstance(other, torch.Tensor) and other.dim() == 0 and other.device.type == "cpu":
        other = other.item()
    if isinstance(other, torch.Tensor) or not other:
        # What that is cannot be told.
        return Taken.SUM if name == "mul" else Taken.MEAN
    divisor = float(other) if name == "div" else 1 / float(other)
    if divisor != items and any(abs(divisor - one) <= 1e-6 * abs(one) for one in read):
        return Taken.OTHER
    parts = divisor / items
    return Taken.MEAN if round(parts) >= 1 and abs(parts - round(parts)) < 1e-6 * parts else Taken.SUM


def _taken(value: Any, known: Any) -> Any:
    return known[value] if _is_known(value, known) else None


def _is_known(value: Any, known: Any) -> bool:
    return isinstance(value, torch.Tensor) and value in known
