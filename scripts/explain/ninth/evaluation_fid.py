"""Statistics for the Fréchet distance are summed with the graph of generator and feature network.

cause: evaluation-with-gradients|retained-graph
line: features = |total += |outer += |statistics(|generator(|extractor(
remedy: no-grad|release-graph
"""

import torch
from torch import nn


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU(True))


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))


class Generator(nn.Module):
    def __init__(self, z=128):
        super().__init__()
        self.start = nn.Linear(z, 256 * 64)
        self.net = nn.Sequential(
            up(256, 128), up(128, 64), up(64, 32), nn.Conv2d(32, 3, 3, padding=1), nn.Tanh()
        )

    def forward(self, z):
        return self.net(self.start(z).view(-1, 256, 8, 8))


generator = Generator().cuda()
critic = nn.Sequential(down(3, 32), down(32, 64), down(64, 128), nn.Flatten(), nn.Linear(128 * 64, 1)).cuda()
extractor = nn.Sequential(
    down(3, 64), down(64, 128), down(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten()
).cuda()
opt_g = torch.optim.Adam(generator.parameters(), 1e-4, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), 4e-4, betas=(0.0, 0.9))


def statistics(images):
    total, outer, n = 0, 0, 0
    for batch in images:
        features = extractor(batch)
        total += features.sum(0)
        outer += features.T @ features
        n += len(features)
    mean = total / n
    return mean, outer / n - mean[:, None] @ mean[None]


def fakes(batches, size=64):
    for _ in range(batches):
        yield generator(torch.randn(size, 128, device="cuda"))


for it in range(200):
    z = torch.randn(32, 128, device="cuda")
    real = torch.rand(32, 3, 64, 64, device="cuda")
    loss_c = (1 - critic(real)).relu().mean() + (1 + critic(generator(z).detach())).relu().mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    loss_g = -critic(generator(z)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if it % 100 == 20:
        generator.eval()
        mean, cov = statistics(fakes(80))
        generator.train()
        print(it, mean.norm().item(), cov.trace().item())
