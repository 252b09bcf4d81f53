"""Whenever the loss improves, a copy of the weights goes onto a list, for an average at the end.

cause: leaking
line: deepcopy
"""

import copy

import torch
from torch import nn


def make():
    layers = [nn.Linear(1024, 1024) for _ in range(16)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


class Training:
    def __init__(self):
        self.model = make().to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)
        self.best, self.snapshots = float("inf"), []

    def run(self, steps):
        for step in range(steps):
            x = torch.randn(256, 1024, device="cuda")
            loss = (self.model(x) - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.remember(1.0 / (step + 1))

    def remember(self, score):
        if score < self.best:
            self.best = score
            self.snapshots.append(copy.deepcopy(self.model.state_dict()))


Training().run(100)
