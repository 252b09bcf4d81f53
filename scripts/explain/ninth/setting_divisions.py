"""Rounding to powers of two makes 128 MiB of each activation of 70 MiB.

cause: setting-that-hurts
remedy: drop-setting
settings: roundup_power2_divisions:1
"""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:1"

import torch
from torch import nn


class Tabular(nn.Module):
    """A wide regression over rows of a table."""

    def __init__(self, columns=200, width=3072, depth=10):
        super().__init__()
        layers = [nn.Linear(columns, width)]
        for _ in range(depth):
            layers += [nn.GELU(), nn.Linear(width, width)]
        self.net = nn.Sequential(*layers, nn.GELU(), nn.Linear(width, 1))

    def forward(self, rows):
        return self.net(rows).squeeze(-1)


def main():
    with torch.device("cuda"):
        model = Tabular()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(50):
        rows = torch.randn(6000, 200, device="cuda")
        target = torch.randn(6000, device="cuda")
        loss = nn.functional.huber_loss(model(rows), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
