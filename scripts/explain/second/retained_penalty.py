"""The loss of each step is added to a running sum that is a tensor with a graph, and nothing of it is ever
let go.

cause: retained-graph
line: model(|self.body(|layer(x)
"""

import torch
from torch import nn


class Meter:
    def __init__(self):
        self.value = 0.0

    def update(self, value):
        self.value = self.value + value


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(64, 64, 5, padding=2) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.elu(layer(x))
        return x


model, meter = Deep().cuda(), Meter()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(60):
    signal = torch.randn(16, 64, 2000, device="cuda")
    loss = (model(signal) - signal).abs().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    meter.update(loss)
