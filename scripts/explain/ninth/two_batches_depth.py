"""The pictures for the log of one batch are still bound while the next batch's are made.

cause: two-batches-alive
line: pictures[|pictures = |F.interpolate(|render(
remedy: drop-variables|keep-on-cpu
"""

import torch
import torch.nn.functional as F
from torch import nn


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ELU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ELU())
        self.scales = nn.ModuleList(nn.Conv2d(64, 8, 1) for _ in range(4))

    def forward(self, x):
        h = self.body(x)
        return {f"scale{i}": scale(F.avg_pool2d(h, 2**i)) for i, scale in enumerate(self.scales)}


@torch.no_grad()
def render(disparity, size):
    return {name: F.interpolate(d, size=size, mode="bilinear") for name, d in disparity.items()}


net = DepthNet().cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
for i in range(30):
    frames = torch.rand(16, 3, 192, 640, device="cuda")
    sparse = torch.rand(16, 8, 48, 160, device="cuda")
    disparity = net(frames)
    loss = sum(
        F.l1_loss(F.interpolate(d, size=(48, 160), mode="bilinear"), sparse) for d in disparity.values()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pictures = render(disparity, (768, 1024))
    summary = {name: (p.amin().item(), p.amax().item()) for name, p in pictures.items()}
    print(i, loss.item(), summary["scale0"])
