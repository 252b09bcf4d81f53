"""Gradients of a wide model are only dropped right before the backward, so they are there throughout the
forward.

cause: two-batches-alive
line:
"""

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3072, 3072) for _ in range(18))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.silu(layer(x))
        return x


model = Wide().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
for _ in range(5):
    x = torch.randn(3200, 3072, device="cuda")
    loss = model(x).square().mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
