"""Self-supervised learning: a bank of features for a nearest-neighbour score, made with the graph of each
batch.

cause: evaluation-with-gradients
line: encoder(|self.encoder
"""

import torch
import torch.nn.functional as F
from torch import nn


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 48, 5, 2, 2),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.BatchNorm2d(96),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projector = nn.Linear(96, 64)

    def forward(self, one, other):
        one, other = (F.normalize(self.projector(self.encoder(x)), dim=1) for x in (one, other))
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one), device=one.device))

    def nearest(self, images, count):
        bank = []
        for _ in range(count):
            bank.append(F.normalize(self.encoder(images()), dim=1))
        bank = torch.cat(bank)
        return (bank @ bank.T).topk(5).indices


def images(count=256):
    return torch.randn(count, 3, 96, 96, device="cuda")


learner = Learner().cuda()
optimizer = torch.optim.SGD(learner.parameters(), lr=0.03, momentum=0.9)
for _ in range(6):
    loss = learner(images(64), images(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(learner.nearest(images, 30).shape)
