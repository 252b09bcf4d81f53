"""A SLAM front end stacks the descriptors of every frame under those of all frames before.

cause: growing-cache
line: self.descriptors = torch.vstack(|slam.track(|self.map.extend(
remedy: keep-on-cpu|preallocate
"""

import torch
from torch import nn


class Map:
    def __init__(self, dim=64):
        self.points = torch.empty((0, 3), device="cuda")
        self.descriptors = torch.empty((0, dim), device="cuda")

    def extend(self, points, descriptors):
        self.points = torch.vstack((self.points, points))
        self.descriptors = torch.vstack((self.descriptors, descriptors))

    def match(self, query):
        recent = self.descriptors[-4096:]
        return (query @ recent.T).argmax(1) if len(recent) else None


class Frontend(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, dim + 1, 3, 1, 1))

    def forward(self, image):
        y = self.net(image[None])[0]
        depth, descriptors = y[0].exp(), y[1:]
        v, u = torch.meshgrid(
            torch.arange(depth.shape[0], device=image.device), torch.arange(depth.shape[1], device=image.device),
            indexing="ij",
        )  # fmt: skip
        points = torch.stack([u * depth, v * depth, depth], -1).view(-1, 3)
        return points, nn.functional.normalize(descriptors.flatten(1).T, dim=1)


class Slam:
    def __init__(self):
        self.frontend, self.map = Frontend().cuda(), Map()

    @torch.inference_mode()
    def track(self, image):
        points, descriptors = self.frontend(image.cuda())
        matches = self.map.match(descriptors[:512])
        self.map.extend(points, descriptors)
        return matches


slam = Slam()
for frame in range(110):
    slam.track(torch.rand(3, 480, 640))
print(len(slam.map.points))
