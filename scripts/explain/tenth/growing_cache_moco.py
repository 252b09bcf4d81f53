"""The queue of negatives of contrastive learning gets longer with each batch, and never shorter.

cause: growing-cache
line: torch.cat([self.queue
remedy: preallocate|keep-on-cpu|kv-cache-window
false: release-graph|checkpointing|fused-optimizer|no-grad|activation-offload|kv-cache-8-bit
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def encoder(dim):
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 4, 3),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, dim),
    )


class MoCo(nn.Module):
    def __init__(self, dim=8192, momentum=0.999, temperature=0.07):
        super().__init__()
        self.query = encoder(dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.m, self.t = momentum, temperature
        self.register_buffer("queue", F.normalize(torch.randn(256, dim)))

    @torch.no_grad()
    def update_key(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue = torch.cat([self.queue, keys], dim=0)

    def forward(self, im_q, im_k):
        q = F.normalize(self.query(im_q))
        with torch.no_grad():
            self.update_key()
            k = F.normalize(self.key(im_k))
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone().t()
        logits = torch.cat([positive, negative], dim=1) / self.t
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


model = MoCo().cuda()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
for step in range(500):
    im_q, im_k = torch.randn(256, 3, 96, 96, device="cuda"), torch.randn(256, 3, 96, 96, device="cuda")
    loss = model(im_q, im_k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
