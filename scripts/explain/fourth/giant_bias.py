"""Attention with a relative position bias that is made for every head and every pair of a long sequence.

cause: giant-request
line: self.bias|bias[|self.table|scaled_dot_product
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=128, heads=8, reach=4096):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(heads, 2 * reach))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        place = torch.arange(n, device=x.device)
        bias = self.table[:, place[:, None] - place[None, :] + self.reach]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, n, w))


model = nn.Sequential(Attention(), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for length in (512, 1024, 4096):
    loss = model(torch.randn(4, length, 128, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
