"""The Chamfer distance of two clouds, with the differences of all pairs of points as one tensor.

cause: giant-request
line: difference =|[:, :, None]|unsqueeze|chamfer(|- b
remedy: checkpointing|micro-batch|smaller-batch|by-parts
"""

import torch
from torch import nn


def chamfer(a, b):
    difference = a[:, :, None] - b[:, None]
    distance = difference.pow(2).sum(-1)
    return distance.min(1).values.mean() + distance.min(2).values.mean()


net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 6000 * 3)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(3):
    codes = torch.randn(4, 128, device="cuda")
    cloud = torch.rand(4, 6000, 3, device="cuda")
    loss = chamfer(net(codes).view(4, 6000, 3), cloud)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
