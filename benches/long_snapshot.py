"""Trains for a long time with memory history on, and writes PyTorch's snapshot, as input for viewers.

Run on the virtual device: `memfit run --gpu a100-80gb --steps 0 -- python benches/long_snapshot.py --events
3000000 FILE`.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Block(nn.Module):
    """A layer with a residual, as transformers have them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise = nn.Linear(width, 4 * width)
        self.fall = nn.Linear(4 * width, width)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + self.fall(torch.relu(self.rise(self.norm(batch))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--events", type=int, default=3_000_000)
    arguments = parser.parse_args()
    torch.cuda.memory._record_memory_history(max_entries=arguments.events, stacks="python")
    model = nn.Sequential(*[Block(512) for _ in range(24)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    done = 0
    while done < arguments.events:
        loss = model(torch.randn(64, 128, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        counts = torch.cuda.memory_stats()
        # Each block is an alloc, a request to free it, and its becoming free.
        done = 3 * counts["allocation.all.allocated"]
    torch.cuda.memory._dump_snapshot(arguments.file)


if __name__ == "__main__":
    main()
