"""The head alone is trained at first; then the backbone is let go, and its first step needs room for its
state.

cause: first-step-surprise
line: optimizer.step()|.step()
remedy: foreach-off|fused-optimizer|8-bit-optimizer
remedy: optimizer-in-backward|adafactor|bf16-optimizer-state|host-optimizer-state
"""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(4096, 4096), nn.ReLU())))
        self.head = nn.Linear(4096, 1000)

    def forward(self, x):
        return self.head(self.backbone(x))


def run(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(64, 4096, device="cuda")
        y = torch.randint(0, 1000, (64,), device="cuda")
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


model = Classifier().cuda()
model.backbone.requires_grad_(False)
run(model, torch.optim.AdamW(model.head.parameters(), lr=1e-3), 3)
model.backbone.requires_grad_(True)
run(model, torch.optim.AdamW(model.parameters(), lr=1e-5), 3)
