"""In how many bits a step computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memfit._levers import Target

from .faults import collect, forget, is_memory

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


class Precision:
    """Autocast and its scaler, or the settings of matrix products; undone by `close`."""

    def __init__(self, name: str | None, device: torch.device, scaler: Any = None) -> None:
        if name is not None and name not in PRECISIONS:
            raise ValueError(
                f"`{name}` is no precision that memfit knows: it is one of {', '.join(PRECISIONS)}"
            )
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
        """The loss scale, as it was last read: to read it is to wait for the device."""
        if self._scale is None:
            self._scale = self._read(1.0)
        return self._scale

    def step(self, optimizer: Any) -> None:
        """Let an optimizer step, unless its gradients overflowed."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)

    def update(self) -> bool:
        """Follow what became of a step with the scale; whether the step was skipped."""
        if self.scaler is None:
            return False
        before = self.scale
        # The optimizer has stepped, which is not done again: the scale follows once there is room, or not at
        # all.
        if not self._try(self.scaler.update) and not self._try(self.scaler.update):
            self.scaler._per_optimizer_states.clear()
        self._scale = self._read(before)
        return self._scale < before

    def loaded(self) -> None:
        """The scaler's state is another one now."""
        self._scale = None

    def _try(self, act: Callable[[], Any]) -> bool:
        """Whether there was memory for something."""
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
        """Compute in this precision; in the caller's own where none was named."""
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
        """Let the scaler forget that it unscaled gradients that are gone."""
        if self.scaler is None:
            return
        getattr(self.scaler, "_per_optimizer_states", {}).pop(id(optimizer), None)
        if getattr(self.scaler, "_growth_tracker", 0) is None:
            # It makes two tensors when it is first used: where only the first of them found room, it makes
            # both again.
            self.scaler._scale = None

    def close(self) -> None:
        """Put back what was set."""
        if self._before is not None:
            self._set_tf32(*self._before)
            self._before = None

    @staticmethod
    def _set_tf32(products: bool, convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def within(precision: Precision, target: Target) -> Iterator[None]:
    """What a model and its loss run in: autocast, and the contexts of levers."""
    with precision(), target.around():
        yield
