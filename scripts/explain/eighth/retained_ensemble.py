"""Temporal ensembling: a sample's running average of predictions drags along every forward pass behind it.

cause: retained-graph
line: self.average[|update(|ensemble.update
remedy: release-graph|no-grad
"""

import torch
import torch.nn.functional as F
from torch import nn


class Ensemble:
    def __init__(self, alpha=0.6):
        self.alpha = alpha
        self.average = {}

    def target(self, index, epoch):
        return self.average[index].detach() / (1 - self.alpha**epoch)

    def update(self, index, probs):
        old = self.average.get(index, 0)
        self.average[index] = self.alpha * old + (1 - self.alpha) * probs


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Dropout2d(0.2)
    )


def rampup(epoch, length=80):
    return float(torch.exp(torch.tensor(-5.0 * (1 - min(epoch / length, 1)) ** 2)))


net = nn.Sequential(block(3, 64), block(64, 128), block(128, 128), nn.Flatten(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.99))
ensemble = Ensemble()
for epoch in range(10):
    for index in range(24):
        images = torch.rand(100, 3, 32, 32, device="cuda")
        labels = torch.randint(0, 10, (20,), device="cuda")
        probs = net(images).softmax(-1)
        loss = F.nll_loss(probs[:20].clamp(min=1e-6).log(), labels)
        if epoch:
            loss = loss + rampup(epoch) * F.mse_loss(probs, ensemble.target(index, epoch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # predict again with the new weights, without the labels' influence
        ensemble.update(index, net(images).softmax(-1))
    print(epoch, loss.item())
