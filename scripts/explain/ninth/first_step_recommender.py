"""Momentum of SGD for an embedding table of 1 GiB is allocated by the first step.

cause: first-step-surprise
line: self.opt.step()
remedy: bf16-optimizer-state|host-optimizer-state|optimizer-in-backward|pure-bf16|8-bit-optimizer
remedy: adafactor|shard
"""

import torch
from torch import nn


class TwoTower(nn.Module):
    def __init__(self, users=2_600_000, items=1_600_000, dim=64):
        super().__init__()
        self.users, self.items = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + self.bias


class Fit:
    def __init__(self, model, lr=0.1):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.loss = nn.BCEWithLogitsLoss()
        self.seen = 0

    def __call__(self, clicks):
        for user, item, label in clicks:
            self.opt.zero_grad()
            loss = self.loss(self.model(user.cuda(), item.cuda()), label.cuda())
            loss.backward()
            self.opt.step()
            self.seen += len(user)
        return self.seen


def clicks(batches, size=8192):
    for _ in range(batches):
        yield torch.randint(2_600_000, (size,)), torch.randint(1_600_000, (size,)), torch.rand(size).round()


with torch.device("cuda"):
    towers = TwoTower()
fit = Fit(towers)
print(fit(clicks(20)), "clicks")
