"""The gradient penalty of a WGAN's critic keeps two graphs of a batch of large pictures.

cause: too-big
line: critic(mixed)|torch.autograd.grad|create_graph=True|self.net(x)|critic(real)|critic(
remedy: micro-batch|smaller-batch|activation-offload|autocast-bf16|activation-budget|checkpointing
false: release-graph|no-grad|keep-on-cpu|drop-variables
"""

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, z=128, c=32):
        super().__init__()
        self.start = nn.Linear(z, 8 * c * 8 * 8)
        widths = [8 * c, 8 * c, 4 * c, 2 * c, c]
        self.up = nn.Sequential(
            *(
                nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.2))
                for i, o in zip(widths, widths[1:])
            )
        )
        self.rgb = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        x = self.start(z).view(len(z), -1, 8, 8)
        return self.rgb(self.up(x)).tanh()


class Critic(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        widths = [3, c, 2 * c, 4 * c, 8 * c]
        self.net = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(i, o, 5, stride=2, padding=2),
                    nn.LayerNorm([o, 64 // 2**n, 64 // 2**n]),
                    nn.LeakyReLU(0.2),
                )
                for n, (i, o) in enumerate(zip(widths, widths[1:]))
            )
        )
        self.out = nn.Linear(8 * c * 8 * 8, 1)

    def forward(self, x):
        return self.out(self.net(x).flatten(1))


def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1, 1, 1, device=real.device)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mixed)
    (grad,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    return ((grad.flatten(1).norm(dim=1) - 1) ** 2).mean()


generator, critic = Generator().cuda(), Critic().cuda()
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
for step in range(30):
    real = torch.rand(320, 3, 128, 128, device="cuda") * 2 - 1
    with torch.no_grad():
        fake = generator(torch.randn(320, 128, device="cuda"))
    loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    if step % 5 == 4:
        opt_g.zero_grad()
        (-critic(generator(torch.randn(64, 128, device="cuda"))).mean()).backward()
        opt_g.step()
