"""Rounding to bf16 by chance: up as often as what is cut off asks for, so that what is added stays true on
average.
"""

from __future__ import annotations

import torch


class Rounding:
    """Rounds with random numbers of its own: the script's come as if nothing had been rounded."""

    def __init__(self) -> None:
        self._numbers: dict[torch.device, torch.Generator] = {}

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of fp32 in bf16."""
        numbers = self._numbers.get(value.device)
        if numbers is None:
            numbers = self._numbers[value.device] = torch.Generator(value.device).manual_seed(0)
        noise = torch.randint(
            0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=numbers
        )
        noise.add_(value.view(torch.int32)).bitwise_and_(-65536)
        rounded = noise.view(torch.float32).to(torch.bfloat16)
        return torch.where(value.isfinite(), rounded, value.to(torch.bfloat16))
