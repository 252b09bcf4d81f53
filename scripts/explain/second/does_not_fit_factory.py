"""A model made on the card layer by layer, by a factory.

cause: does-not-fit
line: nn.Linear(|nn.Conv2d(|.cuda()|make_layer
"""

import torch
from torch import nn


def make_layer(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def make_model(depth, width):
    with torch.device("cuda"):
        return nn.ModuleList(make_layer(width) for _ in range(depth))


model = make_model(24, 2304)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(4, 2304, device="cuda")
for layer in model:
    x = x + layer(x)
x.mean().backward()
optimizer.step()
