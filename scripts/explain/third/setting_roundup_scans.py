"""A setting from a forum post rounds every request up to a power of two or the half above it.

cause: setting-that-hurts
line:
settings: roundup_power2_divisions:2
"""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv3d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv3d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv3d(24, 2, 1)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    scan = torch.randn(1, 1, 180, 180, 180, device="cuda")
    loss = model(scan).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
