"""A detector's targets: the overlap of every anchor with every box, for the batch at once.

cause: giant-request
line: lower|upper|torch.max|torch.min|.clamp|sides
"""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self, anchors=9, classes=20):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(128, anchors * (4 + classes), 1)

    def forward(self, images):
        return self.head(self.backbone(images))


def overlaps(anchors, boxes):
    lower = torch.max(anchors[None, :, None, :2], boxes[:, None, :, :2])
    upper = torch.min(anchors[None, :, None, 2:], boxes[:, None, :, 2:])
    sides = (upper - lower).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


detector = Detector().cuda()
optimizer = torch.optim.SGD(detector.parameters(), lr=0.01, momentum=0.9)
anchors = torch.rand(9 * 64 * 64, 4, device="cuda")
for crowd in (10, 40, 900):
    images, boxes = torch.randn(4, 3, 512, 512).cuda(), torch.rand(4, crowd, 4).cuda()
    predicted = detector(images)
    best = overlaps(anchors, boxes).amax(-1)
    loss = (predicted.flatten(1)[:, : best.shape[1]] - best).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
