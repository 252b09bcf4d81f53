"""Anomaly detection keeps the patch features of every good picture in a memory bank, in full.

cause: leaking
line: bank.append|self.bank.append|embed(
remedy: keep-on-cpu|by-parts
false: release-graph|no-grad|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn


class Extractor(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.layer2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Conv2d(2 * c, 4 * c, 3, 2, 1), nn.ReLU())

    def forward(self, x):
        second = self.layer2(self.stem(x))
        return second, self.layer3(second)


class PatchCore:
    def __init__(self, extractor, device):
        self.extractor, self.device = extractor.to(device).eval(), device
        self.bank = []

    @torch.no_grad()
    def embed(self, images):
        second, third = self.extractor(images.to(self.device))
        second = F.avg_pool2d(second, 3, 1, 1)
        third = F.interpolate(F.avg_pool2d(third, 3, 1, 1), size=second.shape[-2:], mode="bilinear")
        return torch.cat([second, third], dim=1).permute(0, 2, 3, 1).reshape(-1, 384)

    def fit(self, loader, keep=0.01):
        for images in loader:
            self.bank.append(self.embed(images))
        bank = torch.cat(self.bank)
        chosen = torch.randperm(len(bank), device=self.device)[: int(keep * len(bank))]
        self.bank = bank[chosen]

    def score(self, images):
        features = self.embed(images)
        return torch.cdist(features, self.bank).amin(1).view(len(images), -1).amax(1)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, index):
        return torch.full((3, 256, 256), index / 3200)


detector = PatchCore(Extractor(), torch.device("cuda"))
detector.fit(torch.utils.data.DataLoader(Pictures(), batch_size=32))
print(detector.score(torch.rand(8, 3, 256, 256)))
