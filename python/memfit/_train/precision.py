"""In how many bits a step computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

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
        self.scaler = scaler
        if name == "fp16" and scaler is None:
            self.scaler = torch.amp.GradScaler(device.type)
        if name == "tf32":
            self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
            self._set_tf32(True, True)

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

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the scaler forget that it unscaled gradients that are gone."""
        if self.scaler is not None:
            getattr(self.scaler, "_per_optimizer_states", {}).pop(id(optimizer), None)

    def close(self) -> None:
        """Put back what was set."""
        if self._before is not None:
            self._set_tf32(*self._before)
            self._before = None

    @staticmethod
    def _set_tf32(products: bool, convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions
