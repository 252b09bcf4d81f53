"""`shorter-sequences`: sequences of tokens are cut on the host, before they are copied to the GPU."""

from __future__ import annotations

from typing import Any

import torch

from .registry import Stage, lever
from .target import CannotApply, Target, Undo, take_out


@lever("shorter-sequences", Stage.DATA, 40)
def apply(target: Target, value: Any, name: str) -> Undo:
    """Cut batches: `value` is the largest number of tokens of a sequence."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CannotApply(name, f"the value must be a number of tokens, got {value!r}")

    def arrive(batch: Any) -> Any:
        length = longest(batch)
        return batch if length <= value else _cut(batch, length, value)

    target.arrivals.append(arrive)
    return lambda: take_out(target.arrivals, arrive)


def longest(batch: Any) -> int:
    """Return the length of a batch's sequences: the second side of its largest matrix of integers."""
    return max((each.shape[1] for each in _tensors(batch) if _is_tokens(each)), default=0)


def _is_tokens(value: torch.Tensor) -> bool:
    return value.dim() == 2 and value.dtype in (torch.int64, torch.int32)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    entries = value.values() if _is_table(value) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for entry in entries for tensor in _tensors(entry)]


def _is_table(value: Any) -> bool:
    # transformers' batches are dictionaries in all but name.
    return hasattr(value, "keys") and hasattr(value, "values") and hasattr(value, "__setitem__")


def _cut(value: Any, length: int, most: int) -> Any:
    """Cut the tensors that have a row for each token: ids, labels, masks, and masks of all pairs."""
    if isinstance(value, torch.Tensor):
        sides = tuple(
            slice(most) if place and side == length else slice(None) for place, side in enumerate(value.shape)
        )
        # A view would keep the whole batch.
        return value[sides].contiguous() if value.dim() > 1 else value
    if _is_table(value):
        made = {key: _cut(entry, length, most) for key, entry in value.items()}
        if type(value) is dict:
            return made
        for key, entry in made.items():
            value[key] = entry
        return value
    if type(value) in (list, tuple):
        return type(value)(_cut(entry, length, most) for entry in value)
    return value
