"""`optimizer-in-backward`: as soon as a gradient is computed, its parameter is updated and the gradient is
freed.

The gradients never exist all at once. So they cannot be accumulated, clipped by a global norm, reduced
between processes, or scaled and checked for overflow. A step that fails in its backward pass has updated
some of the parameters. Such uses are refused, in advance if they can be detected, or as soon as they
happen.
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

# Settings that a script may change between the backward pass and the step.
_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps")


@lever("optimizer-in-backward", Stage.OPTIMIZER, 70)
def apply(target: Target, _value: Any, name: str) -> Undo:
    """Update in the backward pass; `value` is `True`."""
    if not target.optimizers:
        raise CannotApply(name, "there is no optimizer")
    why = _why_not(target)
    if why:
        raise CannotApply(name, why)
    before = target.updates_in_backward
    undo = all_or_none(each for optimizer in target.optimizers for each in _install(optimizer, name))
    target.updates_in_backward = True

    def restore() -> None:
        target.updates_in_backward = before

    return together([undo, restore])


def _why_not(target: Target) -> str:
    """Return why this training needs gradients after the backward pass, or all of them together; "" if it
    does not.
    """
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    if several or any(isinstance(each, nn.parallel.DistributedDataParallel) for each in target.models()):
        return "gradients are reduced between processes after autograd produces them"
    if any(optimizer._optimizer_step_pre_hooks for optimizer in target.optimizers):
        return "a hook uses the gradients before each optimizer step, but they are already freed then"
    parameters = [each for optimizer in target.optimizers for each in _parameters(optimizer)]
    if len(set(parameters)) < len(parameters):
        return "a parameter is updated twice in each step, but its gradient is freed after the first update"
    return ""


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


def _install(optimizer: torch.optim.Optimizer, name: str) -> Iterator[Undo]:
    pieces, undo = take_over(optimizer, name)
    yield undo
    updates = pieces.between_steps = _Updates(pieces)

    def restore() -> None:
        pieces.between_steps = None

    yield restore
    for parameter in _parameters(optimizer):
        yield parameter.register_post_accumulate_grad_hook(updates).remove


def begin(optimizer: torch.optim.Optimizer) -> None:
    """Forget which parameters were updated, after the updates of a failed backward pass were undone."""
    pieces = taken_over(optimizer)
    if pieces is not None and pieces.between_steps is not None:
        pieces.between_steps.begin()


class _Updates:
    """Updates each parameter once per step, and frees its gradient."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._updated: set[torch.Tensor] = set()
        self._settings: list[Any] = []

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter in self._updated:
            raise RuntimeError(
                "with `optimizer-in-backward`, a second backward pass reached a parameter that this step has "
                "already updated: with gradient accumulation, or models trained in turns as in a GAN, it "
                "would be updated twice\n"
                "hint: leave this lever out, or call `optimizer.step()` after each backward pass if that is "
                "intended"
            )
        if not self._updated:
            self._settings = self._current_settings()
        self._updated.add(parameter)
        self._pieces.run([parameter])  # type: ignore[list-item]
        parameter.grad = None

    def begin(self) -> None:
        self._updated.clear()

    def end(self) -> None:
        changed = bool(self._updated) and self._settings != self._current_settings()
        self._updated.clear()
        if changed:
            raise RuntimeError(
                "with `optimizer-in-backward`, the optimizer's settings changed between the backward pass "
                "and the step, after the parameters were updated with the old ones\n"
                "hint: set the learning rate before the backward pass, or leave this lever out"
            )

    def _current_settings(self) -> list[Any]:
        """Return the optimizer's settings; for tensors, their identity and version."""
        values = [group.get(name) for group in self._pieces.optimizer.param_groups for name in _SETTINGS]
        return [(id(value), value._version) if isinstance(value, torch.Tensor) else value for value in values]
