"""A training curve of the Jacobian's norm keeps the double-backward graph of every step.

cause: retained-graph
line: history["jacobian"]|jacobian_norm(
remedy: release-graph
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments|no-grad
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn


class Regressor(nn.Module):
    def __init__(self, inputs=32, width=768, depth=4):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)[:, 0]


def jacobian_norm(model, x):
    x = x.clone().requires_grad_(True)
    y = model(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return g.square().sum(1).mean()


model = Regressor().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = defaultdict(list)
for step in range(1000):
    x = torch.randn(2048, 32, device="cuda")
    y = x[:, 0] * x[:, 1]
    loss = F.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history["loss"].append(loss.item())
    history["jacobian"].append(jacobian_norm(model, x))
    if step % 100 == 99:
        print(step, sum(history["loss"][-100:]) / 100, torch.stack(history["jacobian"][-100:]).mean().item())
