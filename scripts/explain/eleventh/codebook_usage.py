"""A buffer of all tokens seen is made longer at each step, to measure the use of the codebook.

cause: growing-cache
line: torch.cat
remedy: preallocate|keep-on-cpu|kv-cache-window
false: checkpointing|activation-offload|release-graph|fused-optimizer|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, codes=1024, dim=64):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)
        self.register_buffer("seen", torch.zeros(0, dim))

    def forward(self, z):
        flat = z.reshape(-1, z.size(-1))
        with torch.no_grad():
            index = torch.cdist(flat, self.codebook.weight).argmin(1)
            self.seen = torch.cat((self.seen, flat), dim=0)
        q = self.codebook(index).view_as(z)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss


class VQ(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.enc, self.dec = nn.Linear(128, dim), nn.Linear(dim, 128)
        self.vq = Quantizer(dim=dim)

    def forward(self, x):
        q, loss = self.vq(self.enc(x))
        return F.mse_loss(self.dec(q), x) + loss


model = VQ().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(400):
    x = torch.randn(128, 512, 128, device="cuda")
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
