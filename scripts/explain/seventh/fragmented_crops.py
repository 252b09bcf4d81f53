"""Crops of changing size are scored; of each size a thumbnail is kept for the report.

cause: fragmented
line:
remedy: expandable-segments|max-split-size|garbage-collection|roundup-sizes
"""

import torch
import torch.nn.functional as F
from torch import nn

net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)).cuda().eval()
thumbnails, scores = [], []


@torch.no_grad()
def score(side):
    crop = torch.rand(16, 3, side, side, device="cuda")
    maps = net(crop)
    thumbnails.append(F.adaptive_avg_pool2d(maps, 200))
    scores.append(maps.mean().item())


for side in range(256, 900, 12):
    score(side)
print(len(thumbnails), sum(scores))
