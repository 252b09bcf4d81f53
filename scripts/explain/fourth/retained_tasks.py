"""Meta-learning: the losses of all tasks so far are summed with their graphs, and the sum is never begun
anew.

cause: retained-graph
line: functional_call|torch.func|F.|model(
"""

import torch
import torch.nn.functional as F


def forward(x, weights):
    for index, (w, b) in enumerate(weights):
        x = F.linear(x, w, b)
        if index + 1 < len(weights):
            x = torch.relu(x)
    return x


weights = [
    (
        torch.randn(1024, 1024, device="cuda", requires_grad=True),
        torch.zeros(1024, device="cuda", requires_grad=True),
    )
    for _ in range(3)
]
flat = [part for pair in weights for part in pair]
optimizer = torch.optim.Adam(flat, lr=1e-3)
total = 0
for task in range(80):
    x = torch.randn(4096, 1024, device="cuda")
    inner = F.mse_loss(forward(x, weights), x)
    gradients = torch.autograd.grad(inner, flat, create_graph=True)
    fast = [(w - 0.1 * gw, b - 0.1 * gb) for (w, b), gw, gb in zip(weights, gradients[::2], gradients[1::2])]
    total = total + F.mse_loss(forward(x, fast), x)
    if task % 40 == 39:
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
