"""Signs of trouble, seen before it comes: an allocator that gives back and asks again, memory that grows from step to step,
a scale that falls."""

from __future__ import annotations

import torch

from memfit import _core
from memfit._levers.saying import warn

from .device import Fragmentation, budget
from .growing import Growing
from .precision import Precision


class Watch:
    """Looks on after each optimizer step, and says a thing once."""

    def __init__(
        self,
        controller: _core.Controller,
        precision: Precision,
        device: torch.device,
        fragmentation: Fragmentation,
    ) -> None:
        self._controller = controller
        self._precision = precision
        self._device = device
        self._cuda = device.type == "cuda"
        self._fragmentation = fragmentation
        self._flushes = 0
        self._growing = Growing()
        self._leak_said = False
        self._trouble_said = False

    def flushed(self) -> bool:
        """Whether the allocator had to give memory back and ask again since the last time."""
        if not self._cuda:
            return False
        flushes = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        more, self._flushes = flushes > self._flushes, flushes
        return bool(more)

    def stepped(self, skipped: bool) -> None:
        """A step was done, or was skipped by the scaler."""
        scaler = self._precision.scaler
        if scaler is not None:
            trouble = self._controller.scaled(float(scaler.get_scale()), skipped)
            if trouble is not None and not self._trouble_said:
                self._trouble_said = True
                warn(f'{trouble}; `precision="bf16"` has the range of fp32, and needs no scaler')
        if self._cuda:
            live = torch.cuda.memory_allocated(self._device)
            leak = self._controller.live(live, budget(self._device, self._fragmentation.now(self._device)))
            if not self._leak_said and self._controller.suspects_growth:
                self._growing.look(self._device)
            if leak is not None and not self._leak_said:
                self._leak_said = True
                each, left = leak
                warn(
                    f"live memory grows by {each / 2**20:.1f} MiB a step"
                    + (f", and will not suffice in {left} steps" if left is not None else "")
                    + self._growing.told(self._device)
                )
