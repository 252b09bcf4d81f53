"""A training script of a given size, which `scripts/scale/curves.py` runs on a virtual GPU.

memfit run --gpu a100-80gb --steps 0 -- python scripts/scale/training.py --layers 1000
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Residual(nn.Module):
    """A layer with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, device="cuda")

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + torch.relu(self.linear(batch))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--distributed", action="store_true")
    given = parser.parse_args()
    model: nn.Module = nn.Sequential(*(Residual(given.width) for _ in range(given.layers)))
    if given.distributed:
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(given.steps):
        loss = model(torch.randn(8, given.width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
