"""Gradients that were there before a step: somebody's own backward, of a penalty on weights for example."""

from __future__ import annotations

import torch

from memfit._levers.saying import warn

from .device import local


class Given:
    """They wait while a window runs, however often, and are added to what it gives."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._said = False

    def take(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        """Set them aside. Those that join with a gradient have it of the steps `before` they did, which
        reached them and left them alone.
        """
        known = None if parameters is before else set(map(id, before))
        self._kept = []
        for parameter in parameters:
            if parameter.grad is not None:
                if known is None or id(parameter) in known:
                    self._kept.append((parameter, parameter.grad))
                parameter.grad = None
        if self._kept and not self._said:
            self._say()

    def refuse(self) -> None:
        """Say that they are dropped, where they cannot be added to anything."""
        if self._kept:
            warn("gradients that were there before the step are dropped: `optimizer-in-backward` keeps none")
        self._kept = []

    def add(self) -> None:
        """Add them to those that are there."""
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            elif parameter.grad.layout == gradient.layout == torch.strided:
                local(parameter.grad).add_(local(gradient))
            else:
                parameter.grad = parameter.grad + gradient

    def put_back(self) -> None:
        """The window was dropped: they are where they were."""
        for parameter, gradient in self._kept:
            parameter.grad = gradient
        self._kept = []

    def forget(self) -> None:
        """The optimizer has used them."""
        self._kept = []

    def _say(self) -> None:
        # Zeros are what `zero_grad(set_to_none=False)` leaves.
        if any(bool(local(_values(gradient)).any()) for _, gradient in self._kept):
            self._said = True
            warn(
                "gradients that were there before the step are added to its own: `optimizer.zero_grad()` first, if they are "
                "left over from another loop"
            )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient
