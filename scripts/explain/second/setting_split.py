"""`max_split_size_mb` keeps a large block whole that the training could have used in parts.

cause: setting-that-hurts
settings: max_split_size_mb:64
line:
"""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(1000, 1000) for _ in range(9))

    def forward(self, x):
        for part in self.parts:
            x = torch.sigmoid(part(x))
        return x


keep = []
model = Wide().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in (19_000, 21_000, 23_000, 25_000, 27_000, 29_000):
    loss = model(torch.randn(rows, 1000, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keep.append(loss.detach())
    del loss
