"""A contrastive loss over a memory queue: distances of all to all.

cause: giant-request
line: cdist
"""

import torch
from torch import nn


class Loss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, queue):
        everything = torch.cat([embeddings, queue])
        distances = torch.cdist(everything, everything)
        return (self.margin - distances).clamp(min=0).mean()


net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
loss_fn, queue = Loss(), torch.randn(24_000, 128, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    loss = loss_fn(net(torch.randn(1024, 512, device="cuda")), queue)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
