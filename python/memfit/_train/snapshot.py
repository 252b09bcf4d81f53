"""Everything that a window may change before the optimizer steps, kept at its begin."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .batches import Batch, visit
from .buffers import Buffers
from .division import is_compiled
from .outside import Outside
from .parameters import Parameters
from .randomness import Numbers


class Snapshot:
    """Buffers, random numbers, and what lies outside the model."""

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[nn.Module],
        outside: Outside,
        device: torch.device,
        *,
        watches: bool,
    ) -> None:
        self._model = model
        self._buffers = [Buffers(module) for module in (model, *modules)]
        self._outside = outside
        self._numbers = Numbers(device)
        # Whether the next forward is watched for what it writes to.
        self._watches = watches

    def keep(self) -> None:
        """Remember everything as it is now."""
        for each in self._buffers:
            each.keep()
        self._outside.keep()
        self._numbers.keep()

    def restore(self) -> None:
        """Put everything back."""
        for each in self._buffers:
            each.restore()
        self._outside.restore()
        self._numbers.restore()

    def settle(self) -> None:
        """The window is over."""
        for each in self._buffers:
            each.settle()
        self._outside.settle()
        self._numbers.settle()

    def watching(self, entry: Batch, parameters: Parameters) -> contextlib.AbstractContextManager[Any]:
        """The very first forward and backward are watched for what they write to outside the model."""
        if not self._watches or is_compiled(self._model):
            return contextlib.nullcontext()
        self._watches = False
        known = [*self._model.buffers()]
        known += [each.grad for each in parameters.all if each.grad is not None]
        visit(entry.value, known.append)
        return self._outside.watch(known)
