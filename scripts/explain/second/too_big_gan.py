"""Generator and critic of a GAN in one step, both with their activations.

cause: too-big
line: self.blocks|self.body(|block(|self.layers
"""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, width, depth, outside):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.last = nn.Conv2d(width, outside, 1)

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.leaky_relu(layer(x), 0.2)
        return self.last(x)


class GAN:
    def __init__(self):
        self.generator, self.critic = Tower(32, 7, 3).cuda(), Tower(32, 7, 1).cuda()
        self.lift = nn.Conv2d(3, 32, 1).cuda()
        self.optimizer = torch.optim.Adam([*self.generator.parameters(), *self.critic.parameters()], 2e-4)

    def step(self):
        noise = torch.randn(20, 32, 192, 192, device="cuda")
        score = self.critic(self.lift(self.generator(noise)))
        self.optimizer.zero_grad()
        score.mean().backward()
        self.optimizer.step()


gan = GAN()
for _ in range(3):
    gan.step()
