"""A detector's head is trained on what a frozen backbone gives; the maps of the last images are there while
the next are made.

cause: two-batches-alive
line: maps = | backbone(
"""

import torch
from torch import nn


def stage(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([stage(3, 96), stage(96, 96), stage(96, 96)])

    def forward(self, image):
        maps = {}
        for number, layer in enumerate(self.stages):
            image = layer(image)
            maps[f"p{number}"] = image
        return maps


backbone = Backbone().cuda().eval().requires_grad_(False)
head = nn.Conv2d(96, 9, 1).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
for step in range(5):
    images = torch.rand(14, 3, 288, 288, device="cuda")
    maps = backbone(images)
    loss = sum(head(level).square().mean() for level in maps.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
