"""A two-sample test by maximum mean discrepancy on all 30 000 features of a generator at once.

cause: giant-request
line: torch.cdist(|rbf(
remedy: by-parts|chunked-loss
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=30_000)
parser.add_argument("--gamma", type=float, default=0.1)
args = parser.parse_args()


def rbf(a, b):
    return torch.exp(-args.gamma * torch.cdist(a, b) ** 2)


@torch.no_grad()
def mmd(real, fake):
    return rbf(real, real).mean() + rbf(fake, fake).mean() - 2 * rbf(real, fake).mean()


@torch.no_grad()
def sample(generator, n, batch=1000):
    return torch.cat([generator(torch.randn(batch, 64, device="cuda")) for _ in range(n // batch)])


generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
critic = nn.Sequential(nn.Linear(128, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).cuda()
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
data = torch.randn(args.samples, 128, device="cuda")

for epoch in range(3):
    for real in data.split(256)[:20]:
        fake = generator(torch.randn(len(real), 64, device="cuda"))
        c_loss = critic(fake.detach()).mean() - critic(real).mean()
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()
        g_loss = -critic(fake).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
    print(f"epoch {epoch}: mmd {mmd(data, sample(generator, args.samples)):.4f}")
