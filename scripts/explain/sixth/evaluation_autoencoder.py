"""An autoencoder that trains on patches and is looked at on whole slides, under `eval()` alone.

cause: evaluation-with-gradients
line: autoencoder(slide)|reconstruct(
"""

import torch
from torch import nn


def layers(sizes, up):
    for inside, outside in zip(sizes, sizes[1:]):
        if up:
            yield nn.Upsample(scale_factor=2)
        yield nn.Conv2d(inside, outside, 3, stride=1 if up else 2, padding=1)
        yield nn.GELU()


autoencoder = nn.Sequential(*layers((3, 48, 96, 192), up=False), *layers((192, 96, 48, 3), up=True)).cuda()
optimizer = torch.optim.Adam(autoencoder.parameters())


def reconstruct(slide):
    autoencoder.eval()
    return (autoencoder(slide) - slide).abs().mean(dim=(1, 2, 3))


for epoch in range(2):
    autoencoder.train()
    for _ in range(3):
        patches = torch.rand(16, 3, 128, 128, device="cuda")
        loss = nn.functional.l1_loss(autoencoder(patches), patches)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    errors = [reconstruct(torch.rand(1, 3, 1536, 1536, device="cuda")).mean().item() for _ in range(2)]
    slide = torch.rand(4, 3, 1536, 1536, device="cuda")
    print(epoch, errors, reconstruct(slide).tolist())
