"""An attribute of the model remembers the hidden layer of each call, for a plot.

cause: leaking
line: torch.relu(self.inside|self.seen|hidden
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(256, 2048), nn.Linear(2048, 256)
        self.seen = []

    def forward(self, x):
        hidden = torch.relu(self.inside(x))
        self.seen.append(hidden.detach())
        return self.outside(hidden)


def fit(model, optimizer, batches):
    for index in range(batches):
        x = torch.randn(4096, 256, device="cuda")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if index % 10 == 0:
            print(index, loss.item())


net = Net().cuda()
fit(net, torch.optim.AdamW(net.parameters()), 120)
