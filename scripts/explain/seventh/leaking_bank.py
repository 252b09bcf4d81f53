"""Codes of all pictures are remembered by their number, for negatives; nothing is ever taken out.

cause: leaking
line: self.bank[|.detach()|F.normalize
remedy: keep-on-cpu
"""

import torch
import torch.nn.functional as F
from torch import nn


class Bank:
    def __init__(self):
        self.bank = {}

    def update(self, numbers, codes):
        for number, code in zip(numbers, codes):
            self.bank[number] = code.clone()


encoder = nn.Sequential(nn.Conv2d(3, 64, 7, 4), nn.ReLU(), nn.Conv2d(64, 128, 3, 2), nn.ReLU()).cuda()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03)
memory = Bank()
for step in range(140):
    numbers = range(step * 64, step * 64 + 64)
    x = torch.randn(64, 3, 224, 224, device="cuda")
    maps = F.normalize(encoder(x), dim=1)
    loss = (maps - maps.roll(1, 0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    memory.update(numbers, maps.detach())
