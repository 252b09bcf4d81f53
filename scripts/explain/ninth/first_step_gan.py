"""The discriminator's Adam fits; the generator's first step allocates another pair of moments and does not.

cause: first-step-surprise
line: opt_g.step()|opt_d.step()
remedy: adafactor|8-bit-optimizer|bf16-optimizer-state|host-optimizer-state|optimizer-in-backward
remedy: pure-bf16|shard|zero-grad-earlier|low-rank-gradients
"""

import torch
from torch import nn, optim

LATENT, WIDTH, PIXELS = 512, 4608, 3072


def stack(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2, inplace=True),
        *[m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2, inplace=True))],
        nn.Linear(WIDTH, outputs),
    ).cuda()


with torch.device("cuda"):
    netG, netD = stack(LATENT, PIXELS), stack(PIXELS, 1)
opt_d = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_g = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()

for i in range(100):
    real = torch.randn(32, PIXELS, device="cuda")
    z = torch.randn(32, LATENT, device="cuda")
    fake = netG(z)

    netD.zero_grad()
    out = netD(torch.cat([real, fake.detach()]))
    labels = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)]).cuda()
    err_d = bce(out, labels)
    err_d.backward()
    opt_d.step()

    netG.zero_grad()
    err_g = bce(netD(fake), torch.ones(32, 1, device="cuda"))
    err_g.backward()
    opt_g.step()
    if i % 10 == 0:
        print(f"[{i}] D {err_d.item():.3f} G {err_g.item():.3f}")
