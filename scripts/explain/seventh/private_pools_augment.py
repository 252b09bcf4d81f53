"""Augmentations were given their own MemPool so that they cannot split the training's memory.

cause: private-pools
line: use_mem_pool|torch.rand|noise|augment(
remedy: pool-on-oom
"""

import torch
from torch import nn


class Augment:
    def __init__(self):
        self.pool = torch.cuda.MemPool()

    def __call__(self, images):
        with torch.cuda.use_mem_pool(self.pool):
            noise = torch.randn(images.shape[0] * 12, *images.shape[1:], device=images.device)
            strength = noise.std().item()
            del noise
        return images * (1 + 0 * strength)


augment = Augment()
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    images = augment(torch.rand(40, 3, 288, 288, device="cuda"))
    loss = net(images).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
