"""Trainer.validate calls eval() and no more; the validation loader has a larger batch than the training's.

cause: evaluation-with-gradients
line: self.model(images.to(self.device))|def validate(|self.validate()
remedy: no-grad
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.short = nn.Conv2d(cin, cout, 1, stride) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class Trainer:
    def __init__(self, model, train, valid, device="cuda"):
        self.model, self.train_loader, self.valid_loader = model.to(device), train, valid
        self.device = device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_epoch(self):
        self.model.train()
        for images, labels in self.train_loader:
            loss = F.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def validate(self):
        self.model.eval()
        correct = 0
        for images, labels in self.valid_loader:
            logits = self.model(images.to(self.device))
            correct += (logits.argmax(1).cpu() == labels).sum().item()
        return correct / len(self.valid_loader.dataset)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            print(f"epoch {epoch} accuracy {self.validate():.3f}")


stages = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 256, 2)]
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)
)
train = TensorDataset(torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.long))
valid = TensorDataset(torch.zeros(512, 3, 224, 224), torch.zeros(512, dtype=torch.long))
Trainer(net, DataLoader(train, 16, shuffle=True), DataLoader(valid, 256)).fit(2)
