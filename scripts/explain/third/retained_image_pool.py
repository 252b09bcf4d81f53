"""CycleGAN's pool of generated images, which keeps them with the graphs that made them.

cause: retained-graph
line: self.body|generator(|self.generator|block(|self.blocks
"""

import random

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x):
        return x + self.body(x)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 32, 7, padding=3)
        self.blocks = nn.Sequential(*(Residual(32) for _ in range(4)))
        self.tail = nn.Conv2d(32, 3, 7, padding=3)

    def forward(self, x):
        return torch.tanh(self.tail(self.blocks(self.head(x))))


class ImagePool:
    """Half of the time an older image comes back in place of the new one."""

    def __init__(self, size=50):
        self.size, self.images = size, []

    def query(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        if random.random() > 0.5:
            index = random.randrange(self.size)
            old, self.images[index] = self.images[index], image
            return old
        return image


generator = Generator().cuda()
critic = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4, 2, 1)).cuda()
to_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
to_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
pool = ImagePool()
for _ in range(50):
    real = torch.randn(1, 3, 256, 256, device="cuda")
    fake = generator(real)
    shown = pool.query(generator(real))
    loss = (critic(fake) - 1).square().mean()
    to_generator.zero_grad()
    loss.backward()
    to_generator.step()
    loss = critic(shown.detach()).square().mean() + (critic(real) - 1).square().mean()
    to_critic.zero_grad()
    loss.backward()
    to_critic.step()
