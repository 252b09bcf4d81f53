"""Non-local denoising takes every patch of a photo apart with unfold.

cause: giant-request
line: F.unfold|unfold(
remedy: by-parts
false: no-grad|checkpointing|fused-optimizer|release-graph|drop-variables|expandable-segments
false: activation-offload
"""

import argparse

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--height", type=int, default=1400)
parser.add_argument("--width", type=int, default=2000)
parser.add_argument("--patch", type=int, default=7)
parser.add_argument("--search", type=int, default=11)
args = parser.parse_args()


def patch_features(image, size):
    """Every pixel's neighbourhood as a vector."""
    columns = F.unfold(image, size, padding=size // 2)
    return columns.view(image.size(0), -1, *image.shape[2:])


@torch.no_grad()
def non_local_means(image, patch, search, h=0.1):
    features = patch_features(image, patch)
    total = torch.zeros_like(image)
    norm = torch.zeros_like(image[:, :1])
    half = search // 2
    for dy in range(-half, half + 1):
        for dx in range(-half, half + 1):
            moved = torch.roll(features, (dy, dx), dims=(2, 3))
            distance = (features - moved).square_().mean(1, keepdim=True)
            weight = torch.exp(-distance / h**2)
            total += weight * torch.roll(image, (dy, dx), dims=(2, 3))
            norm += weight
    return total / norm


photo = torch.rand(1, 3, args.height, args.width).cuda()
result = non_local_means(photo, args.patch, args.search)
print(result.mean().item())
