"""Every 25 steps the reconstructions are kept for a figure at the end, with their graph.

cause: retained-graph|leaking
line: figures.append
remedy: release-graph|no-grad|keep-on-cpu
false: checkpointing|activation-offload|micro-batch|drop-variables|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 4, 2, 1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 3, 4, 2, 1)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x)).sigmoid()


model = AutoEncoder().cuda()
probe = torch.rand(32, 3, 128, 128, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
figures, losses = [], []
for step in range(1, 2001):
    batch = torch.rand(48, 3, 128, 128, device="cuda")
    loss = F.l1_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 25 == 0:
        figures.append((step, model(probe)))
        print(step, sum(losses[-25:]) / 25)
