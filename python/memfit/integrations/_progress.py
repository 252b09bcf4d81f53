"""State kept by the callbacks of all trainers: gradients of a training run, and results of its batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memfit._train.gradients import Gradients
from memfit._train.noise import NoiseScale
from memfit._train.result import Result


class Progress:
    """The counts of a training run that runs in micro-batches."""

    def __init__(self) -> None:
        self.retries = 0
        """Number of attempts that ran out of memory."""
        self.micro_batches = 0
        """Largest number of micro-batches that a batch was run in."""
        self.changed: tuple[str, ...] = ()
        """Differences from the training without memfit."""
        self._gradients: Gradients | None = None
        self._noise: NoiseScale | None = None

    def noise_scale(self) -> NoiseScale:
        """Return the gradient noise scale of the running training, or of the last one."""
        found = self._gradients.noise_scale() if self._gradients is not None else self._noise
        if found is None:
            raise RuntimeError(
                "no gradient noise scale was measured\nhint: pass `Settings(noise_scale=True)`, and train"
            )
        return found

    def _add_result(self, result: Result) -> None:
        """Count a batch."""
        self.retries += result.retries
        self.micro_batches = max(self.micro_batches, result.micro_batches)
        self.changed = tuple(dict.fromkeys(self.changed + result.changed))

    def _keep_noise(self) -> None:
        """Keep the noise scale of a training run that ends."""
        if self._gradients is not None and self._gradients.measures_noise:
            self._noise = self._gradients.noise_scale()


def joined(gradients: Gradients, losses: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return a batch's loss from those of its micro-batches."""
    shares = [
        loss if factor == 1.0 else loss * factor
        for loss, factor in zip(losses, gradients.factors, strict=True)
        if factor
    ]
    return sum(shares[1:], shares[0]) if shares else torch.zeros((), device=gradients.device)
