"""Sizes rounded up to half powers of two, for tensors that are a little more than one.

cause: setting-that-hurts
settings: roundup_power2_divisions:2
line:
"""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:2")

import torch
from torch import nn


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())


def main() -> None:
    model = nn.Sequential(*(block(768) for _ in range(5))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(31_500, 768, device="cuda")
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
