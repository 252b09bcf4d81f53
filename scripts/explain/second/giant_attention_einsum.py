"""Attention by einsum over a long sequence.

cause: giant-request
line: torch.einsum("bqhd,bkhd|softmax
"""

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width=128, heads=8):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.to_q, self.to_k, self.to_v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mix = torch.softmax(scores, dim=-1)
        return torch.einsum("bhqk,bkhd->bqhd", mix, v).flatten(-2)


layer = SelfAttention().cuda()
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(3):
    loss = layer(torch.randn(1, 7000, 128, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
