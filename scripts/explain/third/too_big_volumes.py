"""A 3D U-Net over whole volumes.

cause: too-big
line: self.down|self.up|self.body|torch.cat|conv|self.pool
"""

import torch
from torch import nn


def double(inside, outside):
    return nn.Sequential(
        nn.Conv3d(inside, outside, 3, padding=1),
        nn.InstanceNorm3d(outside),
        nn.LeakyReLU(),
        nn.Conv3d(outside, outside, 3, padding=1),
        nn.InstanceNorm3d(outside),
        nn.LeakyReLU(),
    )


class UNet3D(nn.Module):
    def __init__(self, widths=(20, 40, 80, 160)):
        super().__init__()
        self.down = nn.ModuleList()
        inside = 1
        for width in widths:
            self.down.append(double(inside, width))
            inside = width
        self.up = nn.ModuleList()
        self.grow = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.grow.append(nn.ConvTranspose3d(inside, width, 2, stride=2))
            self.up.append(double(2 * width, width))
            inside = width
        self.head = nn.Conv3d(inside, 4, 1)

    def forward(self, x):
        skips = []
        for index, block in enumerate(self.down):
            x = block(x)
            if index < len(self.down) - 1:
                skips.append(x)
                x = nn.functional.max_pool3d(x, 2)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), skips.pop()], 1))
        return self.head(x)


net = UNet3D().cuda()
optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
for _ in range(2):
    volume, labels = torch.randn(1, 1, 128, 128, 128).cuda(), torch.randint(0, 4, (1, 128, 128, 128)).cuda()
    loss = nn.functional.cross_entropy(net(volume), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
