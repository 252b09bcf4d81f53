"""A particle simulator builds its radius graph from all distances between 40,000 particles.

cause: giant-request
line: torch.cdist(positions, positions)
remedy: by-parts
"""

import torch
from torch import nn


def radius_graph(positions, radius, k=16):
    distances = torch.cdist(positions, positions)
    near = distances.topk(k, largest=False)
    weight = (near.values < radius).float()
    return near.indices, weight


class Interaction(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, neighbours, weight):
        h_j = h[neighbours]
        h_i = h[:, None].expand_as(h_j)
        return h + (self.phi(torch.cat([h_i, h_j], -1)) * weight[..., None]).sum(1)


class Fluid(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 64), nn.Linear(64, 3)
        self.rounds = nn.ModuleList([Interaction() for _ in range(2)])

    def forward(self, positions, velocities):
        neighbours, weight = radius_graph(positions, 0.015)
        h = self.encode(torch.cat([positions, velocities], -1))
        for interaction in self.rounds:
            h = interaction(h, neighbours, weight)
        return self.decode(h)


def main():
    fluid = Fluid().cuda()
    optimizer = torch.optim.Adam(fluid.parameters(), lr=1e-4)
    for step in range(100):
        positions = torch.rand(40_000, 3, device="cuda")
        velocities = torch.randn(40_000, 3, device="cuda")
        loss = fluid(positions, velocities).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
