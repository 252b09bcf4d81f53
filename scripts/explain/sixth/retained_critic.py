"""A critic with a gradient penalty. How it likes the generator's pictures is added up to be printed, with all
that it came of.

cause: retained-graph
line: liked = liked
"""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 3 * 64 * 64)).cuda()
critic = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(128 * 16 * 16, 1),
).cuda()
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def penalty(real, fake):
    share = torch.rand(real.shape[0], 1, 1, 1, device=real.device)
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


liked = 0
for step in range(40):
    real = torch.randn(256, 3, 64, 64, device="cuda")
    with torch.no_grad():
        fake = generator(torch.randn(256, 128, device="cuda")).view_as(real)
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    liked = liked + critic(fake).sigmoid().mean()
print(float(liked) / 40)
