"""A small denoiser over images: residual blocks with the time put in, at a batch that is too large.

cause: too-big
line: denoiser(
"""

import math

import torch
from torch import nn


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.project = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, time):
        half = self.width // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=time.device) / half)
        angles = time[:, None].float() * frequencies[None]
        return self.project(torch.cat([angles.sin(), angles.cos()], dim=1))


class ResidualBlock(nn.Module):
    def __init__(self, inside, outside, width):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.shift = nn.Linear(width, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, image, time):
        hidden = self.first(image) + self.shift(time)[:, :, None, None]
        return self.second(hidden) + self.skip(image)


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = TimeEmbedding(width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            [ResidualBlock(width, width, width), ResidualBlock(width, 2 * width, width)]
        )
        self.middle = ResidualBlock(2 * width, 2 * width, width)
        self.up = nn.ModuleList(
            [ResidualBlock(4 * width, width, width), ResidualBlock(2 * width, width, width)]
        )
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image, time):
        time = self.time(time)
        hidden = self.enter(image)
        passed = []
        for block in self.down:
            hidden = block(hidden, time)
            passed.append(hidden)
            hidden = nn.functional.avg_pool2d(hidden, 2)
        hidden = self.middle(hidden, time)
        for block in self.up:
            hidden = nn.functional.interpolate(hidden, scale_factor=2)
            hidden = block(torch.cat([hidden, passed.pop()], dim=1), time)
        return self.leave(hidden)


denoiser = Denoiser().cuda()
optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-4)
kept = torch.linspace(0.999, 0.01, 1000, device="cuda")
for step in range(4):
    images = torch.randn(28, 3, 128, 128, device="cuda")
    time = torch.randint(0, 1000, (images.shape[0],), device="cuda")
    noise = torch.randn_like(images)
    share = kept[time][:, None, None, None]
    noisy = share.sqrt() * images + (1 - share).sqrt() * noise
    loss = nn.functional.mse_loss(denoiser(noisy, time), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
