"""A setting that was copied from a forum rounds sizes up to half powers of two: each tensor here takes half as much again."""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:2")

import torch
from torch import nn


def main() -> None:
    device = torch.device("cuda")
    layers = [module for _ in range(7) for module in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        inputs = torch.randn(33500, 1024, device=device)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
