"""`max_split_size_mb` from a forum: blocks above it are never split, so each is kept for requests of just its
size.

cause: setting-that-hurts
settings: max_split_size_mb:32
line:
"""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32")

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = torch.randn(2, 150 << 20, device="cuda", dtype=torch.float16)
del table
pieces = []
for step in range(54):
    pieces.append(torch.randn(36 << 18, device="cuda"))
for step in range(3):
    loss = model(torch.randn(40_000, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
