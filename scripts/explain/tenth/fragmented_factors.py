"""Covariances of each layer land in the freed activations of the one before, and cut the segments up.

cause: fragmented
line:
remedy: expandable-segments|max-split-size|keep-on-cpu
false: no-grad|fused-optimizer|release-graph|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = [3600, 4000, 4400, 4800, 5200, 5600, 6000]


class Tower(nn.Module):
    def __init__(self, inputs=256):
        super().__init__()
        self.views = nn.ModuleList(nn.Linear(inputs, w) for w in WIDTHS)
        self.out = nn.ModuleList(nn.Linear(w, 16) for w in WIDTHS)

    def forward(self, x):
        return sum(o(F.relu(v(x))) for v, o in zip(self.views, self.out))


@torch.no_grad()
def covariances(model, data):
    """Second moments of every view's activations, for the natural gradient."""
    factors = []
    for view in model.views:
        rows = data[: int(1.7 * view.out_features)].cuda()
        activation = F.relu_(view(rows))
        factors.append(activation.t() @ activation / len(rows))
        del activation
    return factors


@torch.no_grad()
def precondition(model, factors, damping=1e-2):
    for view, factor in zip(model.views, factors):
        for _ in range(2):
            view.weight.grad.sub_(factor @ view.weight.grad, alpha=damping)


data = torch.randn(12_000, 256)
model = Tower().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
factors = covariances(model, data)
for step in range(10):
    x = data[torch.randint(0, len(data), (11_500,))].cuda()
    y = torch.randint(0, 16, (11_500,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    precondition(model, factors)
    optimizer.step()
