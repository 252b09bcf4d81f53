"""A prefetcher puts the next volumes on the card while the present ones are trained on.

cause: two-batches-alive
line: self.next =|.cuda(|.to(|prefetch
remedy: drop-variables|smaller-batch|micro-batch
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16
"""

import torch
from torch import nn


class Prefetcher:
    def __init__(self, count):
        self.count = count
        self.preload()

    def preload(self):
        self.count -= 1
        self.next = torch.zeros(4, 1, 416, 416, 416).cuda(non_blocking=True) if self.count >= 0 else None

    def __iter__(self):
        while self.next is not None:
            batch = self.next
            self.preload()
            yield batch


model = nn.Sequential(nn.Conv3d(1, 2, 3, stride=4, padding=1), nn.ReLU(), nn.Conv3d(2, 1, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for volume in Prefetcher(4):
    loss = model(volume).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
