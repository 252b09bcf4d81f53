"""A depth network returns edges as well; the loss leaves them out, and their graph outlives the step.

cause: two-batches-alive
line: outputs = |self.edges(
remedy: drop-variables|micro-batch|smaller-batch
"""

import torch
import torch.nn.functional as F
from torch import nn


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.ELU())


class DepthNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encoder = nn.Sequential(conv(3, width), conv(width, width * 2, 2), conv(width * 2, width * 2))
        self.depth = nn.Sequential(conv(width * 2, width), nn.Conv2d(width, 1, 3, padding=1), nn.Softplus())
        self.edges = nn.Sequential(
            *[conv(width * 2, width * 2) for _ in range(5)], nn.Conv2d(width * 2, 1, 1)
        )

    def forward(self, image):
        features = self.encoder(image)
        return {"depth": self.depth(features), "edges": self.edges(features)}


def silog(prediction, truth, weight=0.85):
    d = prediction.clamp(min=1e-3).log() - truth.log()
    return (d.square().mean() - weight * d.mean().square()).clamp(min=0).sqrt()


device = torch.device("cuda")
model = DepthNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
use_edges = False  # ablation
for step in range(100):
    image = torch.rand(8, 3, 416, 544, device=device)
    truth = 1 + 9 * torch.rand(8, 1, 208, 272, device=device)
    outputs = model(image)
    loss = silog(outputs["depth"], truth)
    if use_edges:
        loss = loss + 0.1 * F.l1_loss(outputs["edges"], torch.zeros_like(truth))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
