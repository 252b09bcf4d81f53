"""`optimizer-in-backward`: each parameter is updated as soon as its gradient is there, which is then let go.

Gradients are never all there together. So they cannot be accumulated, clipped as a whole, or scaled and looked at; and a step
that fails in its backward is half done.
"""

from __future__ import annotations

from typing import Any

import torch

from .pieces import Pieces, take_over
from .target import CannotApply, Target, Undo
from .wrapping import together


def apply(target: Target, _value: Any, name: str) -> Undo:
    """Update in the backward; its value is true."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    before = target.updates_in_backward
    undone: list[Undo] = []
    for optimizer in target.optimizers:
        pieces, undo = take_over(optimizer, name)
        undone.append(undo)
        parameters = [
            each for group in optimizer.param_groups for each in group["params"] if each.requires_grad
        ]
        undone += [each.register_post_accumulate_grad_hook(_Update(pieces)).remove for each in parameters]
    target.updates_in_backward = True

    def back() -> None:
        target.updates_in_backward = before

    return together([*undone, back])


class _Update:
    """Updates one parameter, and lets go of its gradient."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def __call__(self, parameter: torch.Tensor) -> None:
        self._pieces.run([parameter])  # type: ignore[list-item]
        parameter.grad = None
