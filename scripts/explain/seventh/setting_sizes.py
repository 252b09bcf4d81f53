"""Divisions for each size of a tensor, as a blog post lists them, in a network whose tensors are just
above a power of two.

cause: setting-that-hurts
line:
settings: roundup_power2_divisions:[64:8,128:2,256:2,>:2]
remedy: drop-setting
"""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:[64:8,128:2,256:2,>:2]"

import torch
from torch import nn

net = nn.Sequential(*(m for _ in range(6) for m in (nn.Conv3d(16, 16, 3, padding=1), nn.GELU())))
net = net.cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    volumes = torch.randn(4, 16, 82, 82, 82, device="cuda")
    loss = net(volumes).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
