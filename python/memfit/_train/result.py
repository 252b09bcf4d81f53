"""What a training step came to."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from .tally import Tally


class Result:
    """What a call of `memfit.Step` did."""

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
        """In how many parts the batch was run."""
        self.retries = retries
        """How many attempts failed for want of memory."""
        self.changed = changed
        """What was not computed as the whole batch would; empty where nothing differs but rounding."""
        self.stepped = stepped
        """Whether this batch completed a window, and the optimizer stepped."""
        self.skipped = skipped
        """Whether the scaler skipped the optimizer's step, because gradients overflowed."""
        self.grad_norm = grad_norm
        """The norm of the window's gradient before clipping, where it is clipped."""

    @cached_property
    def loss(self) -> torch.Tensor:
        """The batch's loss, as a mean; on the device, so that reading it is what waits."""
        return self._tally.mean()

    @cached_property
    def losses(self) -> dict[str, torch.Tensor] | None:
        """Each loss's mean, where the loss function returns several."""
        return self._tally.named()

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What the loss function returned beside its "loss": numbers as means over the batch's samples,
        tensors of all parts end to end.
        """
        return self._tally.metrics()

    def __repr__(self) -> str:
        told = ("micro_batches", "retries", "changed", "stepped", "skipped", "grad_norm")
        return f"Result({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"
