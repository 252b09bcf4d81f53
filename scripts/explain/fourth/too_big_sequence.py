"""Backpropagation through all of a long recording at once, in a recurrent cell written by hand.

cause: too-big
line: self.cell|torch.tanh|torch.sigmoid|gates
"""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, inside, width):
        super().__init__()
        self.gates = nn.Linear(inside + width, 3 * width)

    def forward(self, x, h):
        z, r, n = self.gates(torch.cat([x, h], -1)).chunk(3, -1)
        z, r = torch.sigmoid(z), torch.sigmoid(r)
        return (1 - z) * h + z * torch.tanh(n * r)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = Cell(40, 256), nn.Linear(256, 12)

    def forward(self, x):
        h, outs = x.new_zeros(len(x), 256), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outs.append(self.out(h))
        return torch.stack(outs, 1)


tagger = Tagger().to("cuda")
optimizer = torch.optim.Adam(tagger.parameters())
for _ in range(2):
    x = torch.randn(512, 500, 40, device="cuda")
    loss = tagger(x).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
