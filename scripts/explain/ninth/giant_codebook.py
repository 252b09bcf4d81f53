"""Vector quantisation subtracts every code from every position instead of expanding the square.

cause: giant-request
line: flat[:, None, :] - self.codebook.weight|nearest(
remedy: by-parts|micro-batch|smaller-batch
"""

import torch
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, codes=1024, dim=64):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)

    def nearest(self, flat):
        distance = (flat[:, None, :] - self.codebook.weight[None]).pow(2).sum(-1)
        return distance.argmin(dim=1)

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        with torch.no_grad():
            codes = self.nearest(flat)
        q = self.codebook(codes)
        loss = F.mse_loss(q, flat.detach()) + 0.25 * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(b, h, w, c).permute(0, 3, 1, 2), loss


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 1)
        )
        self.quantizer = Quantizer()
        self.up = nn.Sequential(
            nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)
        )

    def forward(self, x):
        q, loss = self.quantizer(self.down(x))
        return self.up(q), loss


vqvae = VQVAE().to("cuda")
optimiser = torch.optim.Adam(vqvae.parameters(), lr=3e-4)
for step in range(500):
    images = torch.rand(16, 3, 128, 128).to("cuda")
    recon, vq = vqvae(images)
    (F.mse_loss(recon, images) + vq).backward()
    optimiser.step()
    optimiser.zero_grad()
