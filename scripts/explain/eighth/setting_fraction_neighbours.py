"""The lab's utilities limit everybody to a third of the card, which was meant for the shared machine.

cause: setting-that-hurts
line: set_per_process_memory_fraction(
remedy: drop-setting
"""

import os
import random

import torch
from torch import nn


def setup(seed=0):
    share = float(os.environ.get("LAB_GPU_SHARE", "0.33"))
    random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.cuda.set_per_process_memory_fraction(share, 0)
    return torch.device("cuda:0")


class GCN(nn.Module):
    """Two rounds of mean aggregation over a citation graph."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.lin1 = nn.Linear(features, hidden)
        self.lin2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def aggregate(self, x, src, dst, degree):
        return torch.zeros_like(x).index_add_(0, dst, x[src]) / degree

    def forward(self, x, src, dst, degree):
        h = torch.relu(self.aggregate(self.lin1(x), src, dst, degree))
        h = torch.relu(self.aggregate(self.lin2(h), src, dst, degree))
        return self.out(h)


device = setup()
nodes, edges = 60_000, 300_000
x = torch.randn(nodes, 500, device=device)
src, dst = torch.randint(nodes, (2, edges), device=device)
degree = torch.ones(nodes, 1, device=device).index_add_(0, dst, torch.ones(edges, 1, device=device))
labels = torch.randint(3, (nodes,), device=device)
model = GCN(500, 512, 3).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(10):
    loss = nn.functional.cross_entropy(model(x, src, dst, degree), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{epoch:3d} {loss.item():.4f}")
