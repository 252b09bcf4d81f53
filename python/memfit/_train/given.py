"""Gradients that existed before a step, from a separate backward pass (a penalty on weights, for example)."""

from __future__ import annotations

import torch

from memfit._levers.saying import warn

from .device import local


class Given:
    """Sets gradients from before a step aside while the step's window runs, and adds them to the result."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._warned = False

    def take(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        """Set the gradients of the parameters in `before` aside. Drop those of the other parameters: earlier
        steps computed these gradients, and their optimizers did not use them.
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
        """Drop them with a warning: gradients cannot be added if none is kept."""
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
                "existing gradients from before the step are added to the step's; call `optimizer.zero_grad()` "
                "first if they are left over from another loop"
            )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient
