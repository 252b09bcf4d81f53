"""MAML over many tasks: the losses of all tasks are collected with the graphs of their inner steps.

cause: retained-graph
line: losses.append|inner|autograd.grad|functional_call|forward(
remedy: release-graph|micro-batch
"""

import torch
import torch.nn.functional as F

W = {
    "w1": torch.randn(1024, 1024, device="cuda", requires_grad=True),
    "w2": torch.randn(1024, 1024, device="cuda", requires_grad=True),
    "w3": torch.randn(1024, 16, device="cuda", requires_grad=True),
}


def forward(params, x):
    x = F.relu(x @ params["w1"])
    x = F.relu(x @ params["w2"])
    return x @ params["w3"]


def inner(params, x, y, steps=5, rate=0.01):
    for _ in range(steps):
        loss = F.mse_loss(forward(params, x), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {name: value - rate * grad for (name, value), grad in zip(params.items(), grads)}
    return params


optimizer = torch.optim.Adam(W.values(), lr=1e-3)
for iteration in range(3):
    losses = []
    for task in range(64):
        x = torch.randn(512, 1024, device="cuda")
        y = torch.randn(512, 16, device="cuda")
        adapted = inner(W, x, y)
        losses.append(F.mse_loss(forward(adapted, x), y))
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
