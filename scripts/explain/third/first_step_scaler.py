"""Mixed precision with a GradScaler: the state of Adam with amsgrad is made in the first step, within the
scaler's.

cause: first-step-surprise
line: scaler.step(
"""

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4096, 4096, bias=False) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def fit(model, optimizer, scaler):
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(32, 4096, device="cuda")).float().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


model = Wide().cuda()
fit(model, torch.optim.Adam(model.parameters(), amsgrad=True), torch.amp.GradScaler("cuda"))
