"""Snapshots are written every 20 steps; the last of them is from before memory ran out.

cause: retained-graph
line: self.elbos.append|self.model(x)
remedy: release-graph
snapshot: last.pickle
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|expandable-segments|no-grad
"""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, inputs=784, hidden=1024, latent=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.dec = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, inputs),
        )

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


class Monitor:
    def __init__(self, model):
        self.model, self.elbos = model, []

    def check(self, x):
        out, mu, logvar = self.model(x)
        recon = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1)
        self.elbos.append((recon + kl).mean())


torch.cuda.memory._record_memory_history(max_entries=200_000)
model = VAE().cuda()
monitor = Monitor(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(400):
    x = torch.rand(2048, 784, device="cuda")
    out, mu, logvar = model(x)
    loss = F.mse_loss(out.sigmoid(), x) - 0.5e-3 * (1 + logvar - mu.square() - logvar.exp()).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    monitor.check(torch.rand(1024, 784, device="cuda"))
    if step % 20 == 0:
        torch.cuda.memory._dump_snapshot("last.pickle")
