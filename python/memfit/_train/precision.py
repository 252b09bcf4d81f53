"""The numeric precision of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from memfit._levers import Target

from .faults import collect, forget, is_memory

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


class Precision:
    """Autocast and its gradient scaler, or TF32 settings; `close` restores the latter."""

    def __init__(self, name: str | None, device: torch.device, scaler: Any = None) -> None:
        if name is not None and name not in PRECISIONS:
            raise ValueError(f"unknown precision `{name}`: it has to be one of {', '.join(PRECISIONS)}")
        self.name = name
        self._device = device
        self._before: tuple[bool, bool] | None = None
        self._scale: float | None = None
        self.scaler = scaler
        if name == "fp16" and scaler is None:
            self.scaler = torch.amp.GradScaler(device.type)
        if name == "tf32":
            self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
            self._set_tf32(True, True)

    @property
    def scale(self) -> float:
        """The loss scale when it was last read; reading it synchronises with the device."""
        if self._scale is None:
            self._scale = self._read(1.0)
        return self._scale

    def stepper(self, optimizer: Any) -> Callable[[], Any]:
        """Return a function that steps the optimizer, unless its gradients overflowed."""
        return optimizer.step if self.scaler is None else partial(self.scaler.step, optimizer)

    def update(self) -> bool:
        """Update the loss scale after a step; return `True` if the step was skipped."""
        if self.scaler is None:
            return False
        before = self.scale
        # The optimizer has stepped, and must not step again: the scale is updated once there is memory for
        # it, or not at all.
        if not self._try(self.scaler.update) and not self._try(self.scaler.update):
            self.scaler._per_optimizer_states.clear()
        self._scale = self._read(before)
        return self._scale < before

    def loaded(self) -> None:
        """The scaler's state was replaced: read the scale again."""
        self._scale = None

    def _try(self, act: Callable[[], Any]) -> bool:
        """Return `False` if an action ran out of memory."""
        try:
            act()
            return True
        except Exception as error:
            if not is_memory(error, self._device):
                raise
            forget(error)
        collect(self._device)
        return False

    def _read(self, known: float) -> float:
        found = [known]
        for _ in range(2):
            if self._try(lambda: found.append(float(self.scaler.get_scale()))):
                break
        return found[-1]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Compute in this precision, or in the caller's if none was given."""
        if self.name in ("bf16", "fp16"):
            kind = torch.bfloat16 if self.name == "bf16" else torch.float16
            with torch.autocast(self._device.type, dtype=kind):
                yield
        elif self.name is not None:
            with torch.autocast(self._device.type, enabled=False):
                yield
        else:
            yield

    def forget(self, optimizer: Any) -> None:
        """Reset the scaler's record of gradients that it unscaled, and that no longer exist."""
        if self.scaler is None:
            return
        getattr(self.scaler, "_per_optimizer_states", {}).pop(id(optimizer), None)
        if getattr(self.scaler, "_growth_tracker", 0) is None:
            # On first use the scaler creates two tensors: if memory ran out after the first, it has to create
            # both again.
            self.scaler._scale = None

    def close(self) -> None:
        """Restore the previous settings."""
        if self._before is not None:
            self._set_tf32(*self._before)
            self._before = None

    @staticmethod
    def _set_tf32(products: bool, convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def within(precision: Precision, target: Target) -> Iterator[None]:
    """Return the context of a model and its loss: autocast, and the contexts of levers."""
    with precision(), target.around():
        yield
