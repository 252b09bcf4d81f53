"""Frames of a video are brought to a few sizes; every third is kept for later, until room is needed for all
of them at once.

cause: fragmented
line:
"""

import torch
import torch.nn.functional as F

first = torch.rand(90, 3, 1080, 1920, device="cuda")
print("brightness of the first frames:", first.mean().item())
del first
kept = []
for frame in range(96):
    image = torch.rand(1, 3, 1080, 1920, device="cuda")
    small = F.interpolate(image, scale_factor=0.5)
    if frame % 3 == 0:
        kept.append(image)
    del image, small
del kept[::2]
clip = torch.empty(60, 3, 1080, 1920, device="cuda")
print(clip.shape, len(kept))
