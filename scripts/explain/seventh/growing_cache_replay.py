"""A replay buffer of pictures grows by `torch.cat` with every batch of new ones.

cause: growing-cache
line: torch.cat|self.states =
remedy: keep-on-cpu|preallocate
"""

import torch
from torch import nn


class Buffer:
    def __init__(self):
        self.states = torch.empty(0, 4, 84, 84, device="cuda")

    def push(self, states):
        self.states = torch.cat([self.states, states])

    def sample(self, count):
        return self.states[torch.randint(0, len(self.states), (count,), device="cuda")]


net = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 20 * 20, 6)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
buffer = Buffer()
for step in range(80):
    buffer.push(torch.rand(256, 4, 84, 84, device="cuda"))
    loss = net(buffer.sample(128)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
