"""A module in Lightning's manner, and a trainer that forgets what Lightning does around `validation_step`.

cause: evaluation-with-gradients
line: self(images)|self.net(
"""

import torch
from torch import nn
from torch.nn import functional as F


class Lit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(8)
        ]
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks)
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.net(images).mean(dim=(2, 3)))

    def training_step(self, images, labels):
        return F.cross_entropy(self(images), labels)

    def validation_step(self, images, labels):
        return F.cross_entropy(self(images), labels)


class Trainer:
    def __init__(self, module):
        self.module = module.cuda()
        self.optimizer = torch.optim.Adam(module.parameters())

    def fit(self):
        for _ in range(3):
            self.optimizer.zero_grad()
            self.module.training_step(*self.batch(32)).backward()
            self.optimizer.step()
        self.module.eval()
        losses = [float(self.module.validation_step(*self.batch(192))) for _ in range(2)]
        print(losses)

    def batch(self, size):
        return torch.randn(size, 3, 128, 128, device="cuda"), torch.randint(0, 10, (size,), device="cuda")


Trainer(Lit()).fit()
