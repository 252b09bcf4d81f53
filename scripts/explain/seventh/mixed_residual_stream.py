"""A stack of residual blocks, with the summed loss kept as a tensor and a penalty on what the blocks give.

cause: retained-graph
line: total = total + |blocks|x + |block(
remedy: release-graph
"""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=256, depth=6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.penalty = 0.0

    def forward(self, x):
        self.penalty = 0.0
        for block in self.blocks:
            x = block(x)
            self.penalty = self.penalty + x.square().mean()
        return x


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
total = 0
for step in range(40):
    x = torch.randn(8192, 256, device="cuda")
    loss = (model(x) - x).abs().mean() + 0.01 * model.penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.enable_grad():
        total = total + (model(x) - x).abs().mean()
print(float(total))
