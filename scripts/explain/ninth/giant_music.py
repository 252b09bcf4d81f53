"""Symbolic music of 12,288 events: attention written by hand makes the matrix of all pairs.

cause: giant-request
line: q @ k.transpose(-1, -2)
remedy: sdpa|by-parts|shorter-sequences
"""

import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, width * 3, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, w // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) * (w // self.heads) ** -0.5
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(b, n, w))


class MusicModel(nn.Module):
    def __init__(self, events=388, width=256, depth=4):
        super().__init__()
        self.events = nn.Embedding(events, width)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            feed = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            self.layers.append(nn.ModuleList([nn.LayerNorm(width), CausalAttention(width, 8), feed]))
        self.out = nn.Linear(width, events)

    def forward(self, events):
        x = self.events(events)
        for norm, attention, feed in self.layers:
            x = x + attention(norm(x))
            x = x + feed(x)
        return self.out(x)


model = MusicModel().cuda()
adam = torch.optim.Adam(model.parameters(), 1e-3)
piece = torch.randint(388, (1, 12_289), device="cuda")
for _ in range(10):
    logits = model(piece[:, :-1])
    loss = nn.functional.cross_entropy(logits[0], piece[0, 1:])
    adam.zero_grad()
    loss.backward()
    adam.step()
