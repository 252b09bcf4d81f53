"""Distances of one cloud and neighbours that stay take turns, until no free piece is large enough.

cause: fragmented
line: torch.cdist(cloud, cloud)
remedy: expandable-segments|by-parts
"""

import torch
from torch import nn


def nearest(cloud, k):
    distance = torch.cdist(cloud, cloud)
    return distance.topk(k, dim=-1, largest=False).indices


class Lift(nn.Module):
    def __init__(self, dim=384):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, cloud):
        return self.net(cloud)


@torch.no_grad()
def prepare(lift, clouds, k=16):
    """The neighbourhoods of all clouds of a scene, for the matching that follows."""
    neighbourhoods = []
    for cloud in clouds:
        index = nearest(cloud, k)
        features = lift(cloud)
        neighbourhoods.append(features[index])
    return neighbourhoods


def match(neighbourhoods):
    means = [n.mean(1) for n in neighbourhoods]
    return [(a * b).sum(-1).mean().item() for a, b in zip(means, means[1:], strict=False)]


lift = Lift().cuda().eval()
clouds = [torch.rand(16_384, 3, device="cuda") for _ in range(4)]
print(match(prepare(lift, clouds)))
