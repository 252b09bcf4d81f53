"""All state that a window may change before the optimizer steps, saved at its start."""

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
    """Buffers, random numbers, and state outside the model."""

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
        # Watch the next forward pass for writes to memory outside the model.
        self.watches = watches

    def keep(self) -> None:
        """Save all state."""
        for each in self._buffers:
            each.keep()
        self._outside.keep()
        self._numbers.keep()

    def restore(self) -> None:
        """Restore all state."""
        for each in self._buffers:
            each.restore()
        self._outside.restore()
        self._numbers.restore()

    def settle(self) -> None:
        """End the window."""
        for each in self._buffers:
            each.settle()
        self._outside.settle()
        self._numbers.settle()

    def watching(self, entry: Batch, parameters: Parameters) -> contextlib.AbstractContextManager[Any]:
        """Watch the very first forward and backward pass for writes to memory outside the model."""
        self.watches = False
        if is_compiled(self._model):
            return contextlib.nullcontext()
        known = [*self._model.buffers()]
        known += [each.grad for each in parameters.all if each.grad is not None]
        visit(entry.value, known.append)
        return self._outside.watch(known)
