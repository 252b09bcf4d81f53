"""The evaluation stands in the training loop itself, on the full test set, without `no_grad`.

cause: evaluation-with-gradients
line: model(test_images)|block(
"""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(8)
        )
        self.out = nn.Linear(256, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


model = Mixer().cuda()
optimizer = torch.optim.Adam(model.parameters())
test_images = torch.randn(90_000, 256, device="cuda")
for epoch in range(3):
    for _ in range(4):
        loss = model(torch.randn(2000, 256, device="cuda")).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    accuracy = (model(test_images).argmax(-1) == 0).float().mean().item()
    model.train()
