"""`model.eval()` was thought to be enough for the test set, which runs in larger batches.

cause: evaluation-with-gradients
line: model(images)|model(x)|net(|outputs =
remedy: no-grad
"""

import torch
from torch import nn
from torchvision.models import resnet18


def train_epoch(model, optimizer, criterion):
    model.train()
    for _ in range(3):
        images = torch.randn(16, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 10, (16,), device="cuda")
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


def score(model, batches=3):
    model.eval()
    right = total = 0
    for _ in range(batches):
        images = torch.randn(160, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 10, (160,), device="cuda")
        outputs = model(images)
        _, predicted = outputs.max(1)
        right += predicted.eq(labels).sum().item()
        total += labels.size(0)
    return right / total


model = resnet18(weights=None, num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    train_epoch(model, optimizer, nn.CrossEntropyLoss())
    print(epoch, score(model))
