"""`optimizer-in-backward`: each parameter is updated as soon as its gradient is there, which is then let go.

Gradients are never all there together. So they cannot be accumulated, clipped as a whole, exchanged, or
scaled and looked at; and a step that fails in its backward is half done. What can be seen of that is refused,
before it is done or as soon as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .pieces import Pieces, take_over, taken_over
from .registry import Stage, lever
from .target import CannotApply, Target, Undo
from .wrapping import all_or_none, together

# What a step goes by, and a script may set between the backward and the step.
_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps")


@lever("optimizer-in-backward", Stage.OPTIMIZER, 70)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Update in the backward; its value is true."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    why = _why_not(target)
    if why:
        raise CannotApply(name, why)
    before = target.updates_in_backward
    undone = all_or_none(each for optimizer in target.optimizers for each in _one(optimizer, name))
    target.updates_in_backward = True

    def back() -> None:
        target.updates_in_backward = before

    return together([undone, back])


def _why_not(target: Target) -> str:
    """What of this training needs gradients after the backward, or all of them together."""
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    if several or any(isinstance(each, nn.parallel.DistributedDataParallel) for each in target.models()):
        return "gradients are reduced between processes after autograd produces them"
    if any(optimizer._optimizer_step_pre_hooks for optimizer in target.optimizers):
        return "something is done to the gradients before each step, when they would be gone"
    parameters = [each for optimizer in target.optimizers for each in _parameters(optimizer)]
    if len(set(parameters)) < len(parameters):
        return "a parameter is updated twice in each step, and its gradient would be gone for the second time"
    return ""


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


def _one(optimizer: torch.optim.Optimizer, name: str) -> Iterator[Undo]:
    pieces, undo = take_over(optimizer, name)
    yield undo
    updates = pieces.turns = _Updates(pieces)

    def back() -> None:
        pieces.turns = None

    yield back
    for parameter in _parameters(optimizer):
        yield parameter.register_post_accumulate_grad_hook(updates).remove


def begin(optimizer: torch.optim.Optimizer) -> None:
    """A step begins from where the last one ended: what a backward did since then was put back."""
    pieces = taken_over(optimizer)
    if pieces is not None and pieces.turns is not None:
        pieces.turns.begin()


class _Updates:
    """Updates parameters, and lets go of their gradients; each once in a step."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._updated: set[torch.Tensor] = set()
        self._settings: list[Any] = []

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter in self._updated:
            raise RuntimeError(
                "with `optimizer-in-backward`, a second backward reached a parameter that this step has updated already: what is "
                "added up, or trained in turns as the two models of a GAN, would be updated twice\n"
                "hint: leave this lever out, or call `optimizer.step()` after each backward if that is what is meant"
            )
        if not self._updated:
            self._settings = self._now()
        self._updated.add(parameter)
        self._pieces.run([parameter])  # type: ignore[list-item]
        parameter.grad = None

    def begin(self) -> None:
        self._updated.clear()

    def end(self) -> None:
        changed = bool(self._updated) and self._settings != self._now()
        self._updated.clear()
        if changed:
            raise RuntimeError(
                "with `optimizer-in-backward`, the optimizer's settings were changed between the backward and its step: parameters "
                "were updated with those from before\n"
                "hint: set the learning rate before the backward, or leave this lever out"
            )

    def _now(self) -> list[Any]:
        """The settings; of those that are tensors, which and in what version."""
        values = [group.get(name) for group in self._pieces.optimizer.param_groups for name in _SETTINGS]
        return [(id(value), value._version) if isinstance(value, torch.Tensor) else value for value in values]
