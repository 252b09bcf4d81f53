"""Attention maps are set aside for a figure, every step, where they are.

cause: leaking
line: softmax(
"""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.maps = []

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(w // self.heads), dim=-1)
        self.maps.append(weights)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm = SelfAttention(width, 4), nn.LayerNorm(width)

    def forward(self, x):
        return x + self.attention(self.norm(x))


model = nn.Sequential(*(Block(128) for _ in range(2)), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for epoch in range(20):
    for _ in range(10):
        x, y = torch.randn(16, 256, 128, device="cuda"), torch.randint(0, 10, (16,), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x).mean(1), y)
        loss.backward()
        optimizer.step()
