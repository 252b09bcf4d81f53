"""Stochastic rounding to bf16: rounds up with a probability equal to the truncated fraction, so that sums are
unbiased.
"""

from __future__ import annotations

import torch


class Rounding:
    """Rounds with its own generator, so that the script's random numbers are unaffected."""

    def __init__(self) -> None:
        self._numbers: dict[torch.device, torch.Generator] = {}

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """Round an fp32 tensor to bf16."""
        numbers = self._numbers.get(value.device)
        if numbers is None:
            numbers = self._numbers[value.device] = torch.Generator(value.device).manual_seed(0)
        noise = torch.randint(
            0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=numbers
        )
        noise.add_(value.view(torch.int32)).bitwise_and_(-65536)
        rounded = noise.view(torch.float32).to(torch.bfloat16)
        return torch.where(value.isfinite(), rounded, value.to(torch.bfloat16))
