"""Early signs of trouble: an allocator that empties its cache and retries, memory that grows from step to
step, a falling loss scale.
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

# Maximum number of modules that a warning names.
_MAX_MODULES = 3


class Watch:
    """Checks after each optimizer step, and warns about each problem once."""

    def __init__(self, controller: _core.Controller, precision: Precision, meter: Meter) -> None:
        self._controller = controller
        self._precision = precision
        self._meter = meter
        self._flushes = 0
        self._growing = Growing()
        self._leak_warned = False
        self._trouble_warned = False
        # Number of overflows in each module.
        self._overflows: Counter[str] = Counter()

    def stepped(self, skipped: bool) -> None:
        """Check after an optimizer step, or one that the scaler skipped."""
        if self._precision.scaler is not None:
            self._check_scale(self._precision.scale, skipped)
        if not self._meter.cuda:
            self._controller.stepped(False)
            return
        seen = self._meter.look()
        flushed, self._flushes = seen.flushes > self._flushes, seen.flushes
        self._controller.stepped(flushed)
        leak = self._controller.live(seen.allocated, self._meter.budget)
        if self._leak_warned:
            return
        device = self._meter.device
        if self._controller.suspects_growth:
            self._growing.look(device)
        if leak is not None:
            self._leak_warned = True
            each, left = leak
            warn(
                f"memory in use grows by {_core.format_size(int(each))} per step"
                + (f", and will run out in {left} steps" if left is not None else "")
                + self._growing.describe(device)
            )

    def overflowed(self, parameters: Iterable[tuple[str, torch.Tensor]], model: str) -> None:
        """Record the modules whose gradients overflowed. Call it after a skipped step, before the gradients
        are cleared.
        """
        named = [
            (name.rpartition(".")[0] or model, local(parameter.grad))
            for name, parameter in parameters
            if parameter.grad is not None
        ]
        # One truth value per parameter, copied to the host in a single synchronisation.
        finite = torch.stack([gradient.isfinite().all() for _, gradient in named]).tolist() if named else []
        self._overflows.update({name for (name, _), fine in zip(named, finite, strict=True) if not fine})

    def _check_scale(self, scale: float, skipped: bool) -> None:
        trouble = self._controller.scaled(scale, skipped)
        if trouble is None or self._trouble_warned:
            return
        self._trouble_warned = True
        path = [f"{scale:g}" for scale in self._controller.scales]
        went = f"; the loss scale went {' → '.join([*path[:2], '…', *path[-4:]] if len(path) > 7 else path)}"
        most = self._overflows.most_common(_MAX_MODULES)
        where = (
            f"; gradients overflowed most often in {', '.join(f'`{name}`' for name, _ in most)}"
            if most
            else ""
        )
        warn(f"{trouble}{went if len(path) > 1 else ''}{where}; {self._advice()}")

    def _advice(self) -> str:
        """Return advice about fp16 for this device."""
        better = '`precision="bf16"` has the range of fp32 and needs no scaler'
        if self._meter.cuda and torch.cuda.get_device_capability(self._meter.device)[0] < 8:
            return (
                f"{better}, but this GPU has no bf16 units, so bf16 would be slower than fp16; run the modules "
                "whose gradients overflow in fp32 (`torch.autocast(..., enabled=False)` around them), or clip "
                "the activations before them"
            )
        return better
