"""Hutchinson estimates of the curvature are collected as tensors that have a graph of their own.

cause: retained-graph
line: traces.append|hutchinson(|torch.autograd.grad
remedy: release-graph
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|expandable-segments|no-grad
"""

import torch
import torch.nn.functional as F
from torch import nn


class ConvNet(nn.Module):
    def __init__(self, c=64, classes=10):
        super().__init__()
        self.c1, self.c2, self.c3 = (
            nn.Conv2d(3, c, 3, padding=1),
            nn.Conv2d(c, c, 3, padding=1),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.fc = nn.Linear(c, classes)

    def forward(self, x):
        x = F.softplus(self.c1(x))
        x = F.avg_pool2d(F.softplus(self.c2(x)), 2)
        x = F.softplus(self.c3(x))
        return self.fc(x.mean((2, 3)))


def hutchinson(model, x, y):
    params = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    vs = [torch.randint_like(p, 2) * 2 - 1 for p in params]
    return sum((g * v).sum() for g, v in zip(grads, vs)).square()


model = ConvNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
traces = []
for step in range(500):
    x, y = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    traces.append(hutchinson(model, x, y))
print(torch.stack(traces).mean().item())
