"""Sliding-window inference adds each window's output to a canvas, with gradients on.

cause: evaluation-with-gradients|retained-graph
line: network(window)|canvas[|sliding_window(
remedy: no-grad|release-graph
false: keep-on-cpu|checkpointing|activation-offload|micro-batch|smaller-batch|drop-variables
false: fused-optimizer|expandable-segments
"""

import itertools

import torch
from torch import nn


class VNet(nn.Module):
    def __init__(self, classes=4, c=16):
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv3d(1, c, 3, padding=1), nn.InstanceNorm3d(c), nn.PReLU())
        self.enc2 = nn.Sequential(nn.Conv3d(c, 2 * c, 3, 2, 1), nn.InstanceNorm3d(2 * c), nn.PReLU())
        self.up = nn.ConvTranspose3d(2 * c, c, 2, 2)
        self.head = nn.Conv3d(2 * c, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        return self.head(torch.cat([a, self.up(self.enc2(a))], dim=1))


def sliding_window(volume, network, size=64, overlap=0.5, classes=4):
    step = int(size * (1 - overlap))
    shape = volume.shape[2:]
    canvas = torch.zeros(1, classes, *shape, device=volume.device)
    count = torch.zeros(1, 1, *shape, device=volume.device)
    starts = [range(0, s - size + 1, step) for s in shape]
    for z, y, x in itertools.product(*starts):
        part = (..., slice(z, z + size), slice(y, y + size), slice(x, x + size))
        window = volume[part]
        canvas[part] += network(window)
        count[part] += 1
    return canvas / count


def dice(prediction, truth, classes=4):
    scores = []
    for c in range(1, classes):
        p, t = prediction == c, truth == c
        scores.append((2 * (p & t).sum() / (p.sum() + t.sum()).clamp(min=1)).item())
    return sum(scores) / len(scores)


network = VNet().cuda()
network.eval()
results = []
for case in range(3):
    volume = torch.randn(1, 1, 160, 160, 160).cuda()
    truth = torch.randint(0, 4, (1, 160, 160, 160)).cuda()
    logits = sliding_window(volume, network)
    results.append(dice(logits.argmax(1), truth))
print(sum(results) / len(results))
