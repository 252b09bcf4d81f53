"""A large table's gradient is there while the next forward runs, since it is dropped only before the next
backward.

cause: two-batches-alive
line:
"""

import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(600_000, 256)
        self.tower = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, items):
        return self.tower(self.table(items)).squeeze(-1)


ranker = Ranker().cuda()
optimizer = torch.optim.SGD(ranker.parameters(), lr=0.1, foreach=False)
for _ in range(4):
    items = torch.randint(0, 600_000, (2048, 64), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = ranker(items).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
