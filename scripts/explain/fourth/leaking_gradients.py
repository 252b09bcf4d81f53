"""Copies of all gradients are kept for a study of their noise.

cause: leaking
line: .clone()
"""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = {}
for step in range(60):
    x = torch.randn(512, 1536, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    history[step] = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
