"""Signs of trouble, seen before it comes: an allocator that gives back and asks again, memory that grows from
step to step, a scale that falls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from memfit import _core
from memfit._levers.saying import warn

from .device import Meter, local
from .growing import Growing
from .precision import Precision

# So many modules are named.
_MODULES = 3


class Watch:
    """Looks on after each optimizer step, and says a thing once."""

    def __init__(self, controller: _core.Controller, precision: Precision, meter: Meter) -> None:
        self._controller = controller
        self._precision = precision
        self._meter = meter
        self._flushes = 0
        self._growing = Growing()
        self._leak_said = False
        self._trouble_said = False
        # How often gradients overflowed in each module.
        self._overflows: Counter[str] = Counter()

    def stepped(self, skipped: bool) -> None:
        """A step was done, or was skipped by the scaler."""
        if self._precision.scaler is not None:
            self._look_at_scale(self._precision.scale, skipped)
        if not self._meter.cuda:
            self._controller.stepped(False)
            return
        seen = self._meter.look()
        flushed, self._flushes = seen.flushes > self._flushes, seen.flushes
        self._controller.stepped(flushed)
        leak = self._controller.live(seen.allocated, self._meter.budget)
        if self._leak_said:
            return
        device = self._meter.device
        if self._controller.suspects_growth:
            self._growing.look(device)
        if leak is not None:
            self._leak_said = True
            each, left = leak
            warn(
                f"live memory grows by {each / 2**20:.1f} MiB a step"
                + (f", and will not suffice in {left} steps" if left is not None else "")
                + self._growing.told(device)
            )

    def overflowed(self, parameters: Iterable[tuple[str, torch.Tensor]], model: str) -> None:
        """The scaler skipped a step: in which modules gradients overflowed, before they are gone."""
        named = [
            (name.rpartition(".")[0] or model, local(parameter.grad))
            for name, parameter in parameters
            if parameter.grad is not None
        ]
        # One number for each, and one wait for all of them.
        finite = torch.stack([gradient.isfinite().all() for _, gradient in named]).tolist() if named else []
        self._overflows.update({name for (name, _), fine in zip(named, finite, strict=True) if not fine})

    def _look_at_scale(self, scale: float, skipped: bool) -> None:
        trouble = self._controller.scaled(scale, skipped)
        if trouble is None or self._trouble_said:
            return
        self._trouble_said = True
        path = [f"{scale:g}" for scale in self._controller.scales]
        went = f"; the scale went {' → '.join([*path[:2], '…', *path[-4:]] if len(path) > 7 else path)}"
        most = self._overflows.most_common(_MODULES)
        where = (
            f"; gradients overflowed most often in {', '.join(f'`{name}`' for name, _ in most)}"
            if most
            else ""
        )
        warn(f"{trouble}{went if len(path) > 1 else ''}{where}; {self._instead()}")

    def _instead(self) -> str:
        """What to do about fp16, on this device."""
        better = '`precision="bf16"` has the range of fp32, and needs no scaler'
        if self._meter.cuda and torch.cuda.get_device_capability(self._meter.device)[0] < 8:
            return (
                f"{better}, but this card has no units for it and would be slower; compute these modules in fp32 "
                "(`torch.autocast(..., enabled=False)` around them), or clip the activations before them"
            )
        return better
