"""Depth from video: the prediction before is kept for a loss that somebody has since taken out.

cause: two-batches-alive
line: model(|previous|self.net
"""

import torch
from torch import nn


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1))

    def forward(self, frames):
        return self.net(frames)


model = Depth().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
previous = None
for step in range(5):
    frames = torch.randn(8, 3, 768, 1024, device="cuda")
    depth = model(frames)
    loss = depth.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    previous = depth
