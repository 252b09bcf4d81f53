"""DDPM on 64-pixel flowers with the batch size of the paper.

cause: too-big
line: eps_model(a|h = self.|block(h, temb)|h = block(|h + self.skip(
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|micro-batch|activation-budget
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10_000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], -1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb=256):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(temb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class EpsModel(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(ch, ch), ResBlock(ch, ch * 2), ResBlock(ch * 2, ch * 4)])
        self.up = nn.ModuleList([ResBlock(ch * 8, ch * 2), ResBlock(ch * 4, ch), ResBlock(ch * 2, ch)])
        self.tail = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, t):
        temb = timestep_embedding(t, 256)
        h, skips = self.head(x), []
        for block in self.down:
            skips.append(block(h, temb))
            h = F.avg_pool2d(skips[-1], 2)
        for block in self.up:
            h = F.interpolate(h, scale_factor=2)
            h = block(torch.cat([h, skips.pop()], 1), temb)
        return self.tail(h)


eps_model = EpsModel().cuda()
alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
optimizer = torch.optim.Adam(eps_model.parameters(), lr=2e-4)
for step in range(50):
    x0 = torch.rand(128, 3, 64, 64).cuda() * 2 - 1
    t = torch.randint(0, 1000, (128,), device="cuda")
    noise = torch.randn_like(x0)
    a = alpha_bar[t][:, None, None, None]
    loss = F.mse_loss(eps_model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
