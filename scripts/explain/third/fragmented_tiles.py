"""Tiles of a slide are embedded; every second one turns out to be empty glass and is dropped, and then they
are put together.

cause: fragmented
line:
"""

import torch
from torch import nn


@torch.no_grad()
def embed(model, count):
    tiles = []
    for _ in range(count):
        tiles.append(model(torch.rand(1, 3, 512, 512, device="cuda")))
    return tiles


model = nn.Conv2d(3, 48, 3, padding=1).cuda()
with torch.no_grad():
    print("a first look:", model(torch.rand(40, 3, 512, 512, device="cuda")).mean().item())
tiles = embed(model, 48)
for index in range(0, 48, 2):
    tiles[index] = None
kept = [tile for tile in tiles if tile is not None]
slide = torch.cat(kept[:20])
print(slide.shape)
