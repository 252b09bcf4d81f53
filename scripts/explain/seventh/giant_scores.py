"""Attention over long documents, written out: the scores of all pairs of tokens are one tensor.

cause: giant-request
line: scores =|@ k|softmax|matmul
remedy: sdpa|checkpointing|micro-batch
"""

import math

import torch
from torch import nn


class LongAttention(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


model = LongAttention().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    document = torch.randn(1, 11_000, 256, device="cuda")
    loss = (model(document) - document).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
