"""A cache without a limit keeps the attention bias of every length that came by.

cause: leaking|growing-cache
line: return bias|bias =|.masked_fill|torch.full(|alibi(|distance =
remedy: keep-on-cpu|length-buckets
false: release-graph|no-grad|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments
"""

import functools
import random

import torch
import torch.nn.functional as F
from torch import nn


@functools.cache
def alibi(heads, length, device):
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    distance = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    bias = slopes[:, None, None] * distance
    return bias.masked_fill(distance > 0, float("-inf"))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = alibi(self.heads, t, x.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self, vocab=8000, dim=256, depth=4, heads=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


random.seed(1)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(300):
    length = random.randint(600, 1000)
    ids = torch.randint(0, 8000, (1, length + 1), device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1]).view(-1, 8000), ids[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
