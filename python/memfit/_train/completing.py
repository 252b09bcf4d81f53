"""Completes a window's gradients: corrects their divisor, exchanges, unscales and clips them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from memfit import _core

from .device import local
from .given import Given
from .noise import Noise
from .parameters import Parameters
from .precision import Precision
from .ranks import SingleRank
from .updates import Updates


class Completion:
    """The steps between a window's last backward pass and the optimizer step."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        controller: _core.Controller,
        ranks: SingleRank,
        precision: Precision,
        updates: Updates,
        given: Given,
        clip: float | None,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._controller = controller
        self._ranks = ranks
        self._precision = precision
        self._updates = updates
        self._given = given
        self._clip = clip
        # Measures the noise of gradients, if the user asked for it.
        self.noise: Noise | None = None
        # Set if another trainer scales the losses, so that there is nothing to correct.
        self.lent = False

    def run(
        self, total: float, factor: float | None, inherited: Mapping[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """Complete the gradients, and return their norm if they are clipped. `total` is the count of all
        ranks, `factor` the correction of several losses.
        """
        if self._controller.held > 1:
            # The user may have added parameters between two batches.
            self._parameters.look()
        mean = 1.0 if self.lent else self._controller.correction(total) if factor is None else factor
        correction = self._ranks.correction(mean)
        if self.noise is not None:
            self._measure(self.noise, bool(inherited))
        if inherited:
            self._parameters.add_gradients(inherited)
        if correction != 1.0:
            gradients = [parameter.grad for parameter in self._parameters.all if parameter.grad is not None]
            if gradients:
                # `_foreach` does not accept tensors on different meshes, but accepts their local shards.
                torch._foreach_mul_([local(each) for each in gradients], correction)
        if self._ranks.world > 1:
            self._ranks.reduce(self._parameters.all, self._model.buffers())
        if self._precision.scaler is not None:
            # Unscaled here, where a failure can be retried, and not in the optimizer's step.
            self._precision.scaler.unscale_(self._updates.optimizer)
        self._given.add()
        if self._clip is not None:
            norm = self._ranks.clip(self._parameters.all, self._clip)
            return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return None

    def _measure(self, noise: Noise, inherits: bool) -> None:
        if inherits:
            noise.spoil()
        scale = self._precision.scale if self._precision.scaler is not None else 1.0
        noise.whole(self._parameters.all, None if self.lent else self._controller.divisor, scale)
