"""The result of a training step."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from .tally import Tally


class Result:
    """The result of calling `memfit.Step`."""

    def __init__(
        self,
        tally: Tally,
        retries: int,
        changed: tuple[str, ...],
        stepped: bool,
        skipped: bool,
        grad_norm: torch.Tensor | None,
    ) -> None:
        self._tally = tally
        self.micro_batches = tally.parts
        """Number of micro-batches that the batch was run in."""
        self.retries = retries
        """Number of attempts that ran out of memory."""
        self.changed = changed
        """Differences from the whole batch's computation; empty if only rounding differs."""
        self.stepped = stepped
        """`True` if this batch completed an accumulation window and the optimizer stepped."""
        self.skipped = skipped
        """`True` if the scaler skipped the optimizer step because gradients overflowed."""
        self.grad_norm = grad_norm
        """The norm of the window's gradient before clipping, if it is clipped."""

    @cached_property
    def loss(self) -> torch.Tensor:
        """The batch's mean loss, on the device: only reading its value synchronises."""
        return self._tally.mean()

    @cached_property
    def losses(self) -> dict[str, torch.Tensor] | None:
        """The mean of each loss, if the loss function returns several."""
        return self._tally.named()

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Everything the loss function returned besides "loss": numbers averaged over the batch's samples,
        tensors concatenated.
        """
        return self._tally.metrics()

    def __repr__(self) -> str:
        names = ("micro_batches", "retries", "changed", "stepped", "skipped", "grad_norm")
        return f"Result({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
