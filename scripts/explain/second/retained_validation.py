"""Validation losses are kept as tensors for the scheduler, each with the graph of its pass.

cause: retained-graph
line: self.model(|self.net(
"""

import torch
from torch import nn


class Experiment:
    def __init__(self):
        self.net = nn.Sequential(
            *(part for _ in range(7) for part in (nn.Linear(640, 640), nn.ReLU()))
        ).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.validation = []

    def train_step(self):
        x = torch.randn(256, 640, device="cuda")
        loss = (self.net(x) - x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def validate(self):
        x = torch.randn(3000, 640, device="cuda")
        self.validation.append((self.net(x) - x).square().mean())

    def run(self):
        for _ in range(80):
            self.train_step()
            self.validate()


Experiment().run()
