"""The launch script's settings came with the repository of another model.

cause: setting-that-hurts
line:
settings: roundup_power2_divisions:2
remedy: drop-setting
"""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"

import torch
from torch import nn

blocks = nn.ModuleList(nn.Linear(768, 768) for _ in range(14)).cuda()
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
for step in range(3):
    x = torch.randn(20, 1100, 768, device="cuda")
    for block in blocks:
        x = x + torch.nn.functional.gelu(block(x))
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
