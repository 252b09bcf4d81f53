"""Streaming speech recognition attends to everything that was said since the stream began.

cause: growing-cache
line: torch.cat([self.left|torch.cat([cache|self.k = torch.cat|torch.cat(
remedy: kv-cache-window|preallocate|kv-cache-8-bit
false: release-graph|checkpointing|micro-batch|fused-optimizer|no-grad|activation-offload|keep-on-cpu
"""

import torch
import torch.nn.functional as F
from torch import nn


class StreamingAttention(nn.Module):
    def __init__(self, dim=512, heads=8):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.k = self.v = None

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        k, v = map(self.split, self.kv(x).chunk(2, dim=-1))
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        y = F.scaled_dot_product_attention(self.split(self.q(x)), k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, layers=8, dim=512):
        super().__init__()
        self.inp = nn.Linear(80, dim)
        self.attn = nn.ModuleList(StreamingAttention(dim) for _ in range(layers))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)) for _ in range(layers)
        )
        self.ctc = nn.Linear(dim, 1000)

    def forward(self, chunk):
        x = self.inp(chunk)
        for attn, ff in zip(self.attn, self.ff):
            x = x + attn(x)
            x = x + ff(x)
        return self.ctc(x).log_softmax(-1)


def microphone(streams, seconds):
    for _ in range(seconds * 100 // 64):
        yield torch.randn(streams, 64, 80)


encoder = Encoder().cuda().eval()
transcript = []
with torch.inference_mode():
    for chunk in microphone(streams=32, seconds=600):
        transcript.append(encoder(chunk.cuda()).argmax(-1).cpu())
print(len(transcript))
