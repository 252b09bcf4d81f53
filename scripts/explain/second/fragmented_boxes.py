"""Detection with pictures of every size, and a cache of the prototypes of each class.

cause: fragmented
line:
"""

import torch
from torch import nn

backbone = nn.Sequential(
    nn.Conv2d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()
)
backbone.cuda()
head = nn.Conv2d(24, 5, 1).cuda()
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=1e-3)
prototypes: dict[int, torch.Tensor] = {}

for step in range(300):
    height, width = 256 + 4 * step, 300 + 3 * step
    picture = torch.rand(3, 3, height, width, device="cuda")
    maps = backbone(picture)
    loss = head(maps).abs().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    # One of 200 classes, each with the crop that was seen last.
    prototypes[step % 200] = maps.detach()[:, :, :128, :140].clone()
    picture = maps = loss = None
