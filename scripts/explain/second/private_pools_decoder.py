"""A decoder works in a pool of its own before the training begins.

cause: private-pools
line: torch.zeros(|frames|torch.stack
"""

import torch
from torch import nn


class Decoder:
    def __init__(self):
        self.pool = torch.cuda.MemPool()

    def __call__(self, count):
        with torch.cuda.use_mem_pool(self.pool):
            frames = torch.zeros(count, 3, 720, 1280, device="cuda")
            return frames.mean(dim=(0, 2, 3))


mean = Decoder()(150)
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    clips = torch.randn(12, 3, 360, 640, device="cuda") - mean[:, None, None]
    loss = model(clips).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
