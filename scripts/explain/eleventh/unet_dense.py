"""A deep encoder with plain attention at three scales; the first forward pass needs far more than there is.

cause: too-big|giant-request
line: .softmax(|@ k|self.attend|attn =
remedy: sdpa|checkpointing|activation-offload|micro-batch|smaller-batch|autocast-bf16
false: no-grad|release-graph|drop-variables|keep-on-cpu|expandable-segments|max-split-size
"""

import torch
import torch.nn.functional as F
from torch import nn


class SpatialAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.proj = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        attn = (q.transpose(1, 2) @ k) * c**-0.5
        attn = attn.softmax(dim=-1)
        y = (v @ attn.transpose(1, 2)).view(b, c, h, w)
        return x + self.proj(y)


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)
        self.attend = nn.Sequential(*(SpatialAttention(o) for _ in range(4)))

    def forward(self, x):
        return self.attend(F.silu(self.conv(x)))


model = nn.Sequential(
    Stage(3, 64), nn.AvgPool2d(2), Stage(64, 128), nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(1000)
).cuda()
model(torch.zeros(1, 3, 48, 48, device="cuda"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(10):
    x, y = torch.randn(24, 3, 48, 48, device="cuda"), torch.randint(0, 1000, (24,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
