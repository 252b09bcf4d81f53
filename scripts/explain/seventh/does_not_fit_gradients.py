"""The weights fit with a small batch; with gradients they do not.

cause: does-not-fit
line: loss.backward()|.backward()
remedy: optimizer-in-backward|pure-bf16|lora|quantized-base|shard
"""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, width=5120, depth=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, device="cuda") for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


model = Tower()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 5120, device="cuda")
loss = model(x).pow(2).mean()
loss.backward()
optimizer.step()
