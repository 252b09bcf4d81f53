"""A compiled mixer over patches whose batch is too large.

cause: too-big
line: model(|compiled(
"""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(patches, patches * 2), nn.GELU(), nn.Linear(patches * 2, patches)
        )
        self.channels = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


model = nn.Sequential(*(Mixer(196, 256) for _ in range(4)), nn.Flatten(), nn.Linear(196 * 256, 10)).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    images = torch.randn(320, 196, 256, device="cuda")
    loss = compiled(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
