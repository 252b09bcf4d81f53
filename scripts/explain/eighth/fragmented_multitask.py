"""Two tasks take turns: few large maps for the one, many that are a bit over half as large for the other.

cause: fragmented
line:
remedy: expandable-segments|max-split-size
"""

import torch
from torch import nn


def tower(depth, width=32):
    layers = []
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.towers = nn.ModuleDict({"saliency": tower(5), "captions": tower(12)})
        self.heads = nn.ModuleDict({"saliency": nn.Conv2d(32, 1, 1), "captions": nn.Conv2d(32, 20, 1)})

    def forward(self, images, task):
        features = self.towers[task](self.stem(images))
        return self.heads[task](features).mean((2, 3))


SIZES = {"saliency": 544, "captions": 400}
model = MultiTask().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for step in range(40):
    task = "captions" if step % 2 else "saliency"
    side = SIZES[task]
    images = torch.rand(8, 3, side, side, device="cuda")
    loss = model(images, task).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
