"""All pairwise differences of a batch of points, made by broadcasting.

cause: giant-request
line: points[:, None]
"""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        return self.net(x)


def contrastive(points: torch.Tensor) -> torch.Tensor:
    distances = (points[:, None] - points[None, :]).pow(2).sum(-1)
    return torch.relu(1 - distances).mean()


encoder = Encoder().cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(3):
    loss = contrastive(encoder(torch.randn(2600, 32, device="cuda")))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
