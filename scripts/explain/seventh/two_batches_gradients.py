"""Gradients of a wide recommender stay until the next backward, through all of the next forward.

cause: two-batches-alive
line:
remedy: zero-grad-earlier
"""

import torch
from torch import nn

tower = nn.Sequential(
    nn.Linear(1024, 6144), nn.ReLU(), nn.Linear(6144, 6144), nn.ReLU(), nn.Linear(6144, 1024)
).cuda()
table = nn.Embedding(200_000, 1024).cuda()
parameters = [*tower.parameters(), *table.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
for step in range(5):
    users = torch.randint(0, 200_000, (6656,), device="cuda")
    items = torch.randint(0, 200_000, (6656,), device="cuda")
    left, right = tower(table(torch.cat([users, items]))).chunk(2)
    loss = -(left * right).sum(1).sigmoid().clamp_min(1e-6).log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
