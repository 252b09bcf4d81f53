"""An average of a monitored loss that nothing calls backward on keeps the graph of every step.

cause: retained-graph
line: self.sums[name] = |consistency = F.mse_loss|meter.add(
remedy: release-graph|no-grad
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn


class Meter:
    def __init__(self):
        self.sums, self.counts = defaultdict(float), defaultdict(int)

    def add(self, name, value, n=1):
        self.sums[name] = self.sums[name] + value * n
        self.counts[name] += n

    def mean(self, name):
        return self.sums[name] / self.counts[name]


class ConvNet(nn.Module):
    def __init__(self, classes=100):
        super().__init__()
        widths = [3, 48, 96, 192]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.GELU())
                for a, b in zip(widths, widths[1:], strict=False)
            )
        )
        self.fc = nn.Linear(192, classes)

    def forward(self, x):
        return self.fc(self.stages(x).mean((-2, -1)))


model = ConvNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
meter = Meter()
for step in range(300):
    weak = torch.randn(64, 3, 96, 96, device="cuda")
    strong = weak + 0.3 * torch.randn_like(weak)
    target = torch.randint(100, (64,), device="cuda")

    logits = model(weak)
    loss = F.cross_entropy(logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    consistency = F.mse_loss(model(strong).softmax(-1), logits.detach().softmax(-1))
    meter.add("loss", loss.item(), len(weak))
    meter.add("consistency", consistency, len(weak))
    if step % 50 == 49:
        print(step, meter.mean("loss"), meter.mean("consistency"))
