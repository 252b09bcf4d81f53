"""A perceptual score is written into the history for the plot, but it is not a part of the loss.

cause: retained-graph
line: history["perceptual"].append(|perceptual(
remedy: release-graph|no-grad
"""

from collections import defaultdict

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, depth=6, width=48):
        super().__init__()
        inner = [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True)) for _ in range(depth)]
        self.net = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), *inner, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, noisy):
        return noisy - self.net(noisy)


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.slices = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in ((1, 64), (64, 96), (96, 128))]
        )

    def forward(self, a, b):
        score = 0
        for part in self.slices:
            a, b = part(a), part(b)
            score = score + (a - b).abs().mean()
        return score


model, perceptual = Denoiser().cuda(), Perceptual().cuda().eval()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
history = defaultdict(list)
for step in range(200):
    clean = torch.rand(16, 1, 160, 160, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    restored = model(noisy)
    loss = (restored - clean).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    history["l1"].append(loss.item())
    history["perceptual"].append(perceptual(restored.detach(), clean))
print({k: sum(float(v) for v in vs) / len(vs) for k, vs in history.items()})
