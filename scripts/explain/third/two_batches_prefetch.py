"""A prefetcher that puts the next batches on the card while one is being worked on; batches are videos.

cause: two-batches-alive
line: .cuda(|.to(
"""

import torch
from torch import nn


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.clip, self.label = next(self.loader)
        except StopIteration:
            self.clip = None
            return
        self.clip = self.clip.cuda(non_blocking=True).float()
        self.label = self.label.cuda(non_blocking=True)

    def next(self):
        clip, label = self.clip, self.label
        self.preload()
        return clip, label


def videos():
    for _ in range(4):
        yield torch.zeros(21, 3, 32, 336, 336, dtype=torch.uint8), torch.zeros(21, dtype=torch.long)


model = nn.Sequential(
    nn.Conv3d(3, 8, 7, stride=(4, 8, 8)), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
prefetcher = Prefetcher(videos())
clip, label = prefetcher.next()
while clip is not None:
    loss = nn.functional.cross_entropy(model(clip / 255), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clip, label = prefetcher.next()
