"""A GAN whose images grow while it trains, and a pool of a few old fakes: each fake pins the segment it was
cut from.

cause: fragmented
line:
"""

import random

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
generator = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 3, padding=1)).to(
    device
)
critic = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3, padding=1)).to(device)
optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=1e-4)
pool: list[torch.Tensor] = []
random.seed(0)


def remember(fake: torch.Tensor) -> None:
    image = F.interpolate(fake.detach()[:4], size=(256, 256)).clone()
    if len(pool) < 120:
        pool.append(image)
    else:
        pool[random.randrange(120)] = image


for step in range(330):
    side = 96 + 2 * step
    noise = torch.randn(8, 8, side, side, device=device)
    fake = generator(noise)
    loss = critic(fake).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    remember(fake)
    del noise, fake, loss
