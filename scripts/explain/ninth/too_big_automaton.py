"""A neural cellular automaton is unrolled for 64 steps, and backpropagation needs every step's hidden layer.

cause: too-big
line: self.hidden(|self.update(|F.relu(|state = |grow(|self.perceive(|F.conv2d(
remedy: checkpointing|micro-batch|smaller-batch|autocast-fp16|activation-offload|shorter-sequences
"""

import torch
import torch.nn.functional as F
from torch import nn


class Automaton(nn.Module):
    def __init__(self, channels=16, hidden=128):
        super().__init__()
        self.channels = channels
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        identity = torch.zeros(3, 3)
        identity[1, 1] = 1
        kernels = torch.stack([identity, sobel, sobel.T]).repeat(channels, 1, 1)[:, None]
        self.register_buffer("kernels", kernels)
        self.hidden = nn.Conv2d(channels * 3, hidden, 1)
        self.update = nn.Conv2d(hidden, channels, 1, bias=False)
        nn.init.zeros_(self.update.weight)

    def perceive(self, state):
        return F.conv2d(state, self.kernels, padding=1, groups=self.channels)

    def step(self, state):
        delta = self.update(F.relu(self.hidden(self.perceive(state))))
        fire = (torch.rand_like(state[:, :1]) < 0.5).float()
        return state + delta * fire


def grow(automaton, state, steps):
    for _ in range(steps):
        state = automaton.step(state)
    return state


device = "cuda"
automaton = Automaton().to(device)
opt = torch.optim.Adam(automaton.parameters(), 2e-3)
target = torch.rand(1, 4, 128, 128, device=device)
seed = torch.zeros(8, 16, 128, 128, device=device)
seed[:, 3:, 64, 64] = 1.0

for epoch in range(200):
    final = grow(automaton, seed, steps=64)
    loss = F.mse_loss(final[:, :4], target.expand(8, -1, -1, -1))
    opt.zero_grad()
    loss.backward()
    for p in automaton.parameters():
        p.grad /= p.grad.norm() + 1e-8
    opt.step()
    if epoch % 20 == 0:
        print(epoch, loss.item())
