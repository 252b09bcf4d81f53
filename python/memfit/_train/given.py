"""Gradients that existed before a step, from a separate backward pass (a penalty on weights, for example)."""

from __future__ import annotations

import torch

from memfit._levers.saying import warn

from .device import local


class Given:
    """Sets these gradients aside while a window runs, and adds them to its result."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._warned = False

    def take(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        """Set the gradients aside. For parameters that are not in `before`, drop the gradient: it stems from
        earlier steps, which computed it without using it.
        """
        known = None if parameters is before else set(map(id, before))
        self._kept = []
        for parameter in parameters:
            if parameter.grad is not None:
                if known is None or id(parameter) in known:
                    self._kept.append((parameter, parameter.grad))
                parameter.grad = None
        if self._kept and not self._warned:
            self._warn_once()

    def refuse(self) -> None:
        """Warn and drop them, if they cannot be added to the window's gradients."""
        if self._kept:
            warn(
                "existing gradients from before the step are dropped: with `optimizer-in-backward` no "
                "gradient is kept"
            )
        self._kept = []

    def add(self) -> None:
        """Add them to the window's gradients."""
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            elif parameter.grad.layout == gradient.layout == torch.strided:
                local(parameter.grad).add_(local(gradient))
            else:
                parameter.grad = parameter.grad + gradient

    def put_back(self) -> None:
        """Restore them after the window was dropped."""
        for parameter, gradient in self._kept:
            parameter.grad = gradient
        self._kept = []

    def forget(self) -> None:
        """Forget them after the optimizer has used them."""
        self._kept = []

    def _warn_once(self) -> None:
        # `zero_grad(set_to_none=False)` leaves zeros behind.
        if any(bool(local(_values(gradient)).any()) for _, gradient in self._kept):
            self._warned = True
            warn(
                "existing gradients from before the step are added to its own; call `optimizer.zero_grad()` "
                "first if they are left over from another loop"
            )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient
