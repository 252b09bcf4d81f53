"""A list of divisions for each size, copied from somebody with another model.

cause: setting-that-hurts
settings: roundup_power2_divisions:[64:2,128:2,256:2,>:2]
line:
"""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[64:2,128:2,256:2,>:2]")

import torch
from torch import nn

model = nn.Sequential(
    *(part for _ in range(6) for part in (nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()))
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    images = torch.randn(36, 24, 196, 196, device="cuda")
    loss = model(images).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
