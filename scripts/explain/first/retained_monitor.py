"""A second head's loss is watched but not trained; its graph hangs on a list.

cause: retained-graph
line: self.trunk(x)|self.monitor|trainer.model(|probe
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [module for _ in range(6) for module in (nn.Linear(768, 768), nn.SiLU())]
        self.trunk = nn.Sequential(*layers)
        self.task, self.probe = nn.Linear(768, 10), nn.Linear(768, 5)

    def forward(self, x):
        x = self.trunk(x)
        return self.task(x), self.probe(x)


class Trainer:
    def __init__(self) -> None:
        self.model = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.probe_losses = []

    def fit(self, steps: int) -> None:
        for _ in range(steps):
            task, _ = self.model(torch.randn(512, 768, device="cuda"))
            self.optimizer.zero_grad()
            task.square().mean().backward()
            self.optimizer.step()
            _, probe = self.model(torch.randn(2048, 768, device="cuda"))
            self.probe_losses.append(probe.square().mean())


trainer = Trainer()
trainer.fit(80)
