"""A test of robustness needs gradients to the input, and keeps all that the weights' gradients need as well.

cause: too-big
line: model(adv)|F.cross_entropy(model(|block(x)|self.body(|logits = model(
remedy: micro-batch|smaller-batch|checkpointing|activation-offload|autocast-bf16|activation-budget
remedy: train-only
false: no-grad|release-graph|drop-variables|keep-on-cpu
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)

    def forward(self, x):
        y = F.silu(self.norm1(self.conv1(x)))
        return F.silu(x + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self, c=96, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 7, stride=2, padding=3)
        self.body = nn.Sequential(*(Block(c) for _ in range(6)))
        self.fc = nn.Linear(c, classes)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


def pgd(model, images, labels, eps=8 / 255, alpha=2 / 255, steps=10):
    delta = torch.empty_like(images).uniform_(-eps, eps)
    for _ in range(steps):
        delta.requires_grad_(True)
        logits = model((images + delta).clamp(0, 1))
        loss = F.cross_entropy(logits, labels)
        (grad,) = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + alpha * grad.sign()).clamp(-eps, eps)
    return (images + delta).clamp(0, 1)


def robust_accuracy(model, batches):
    model.eval()
    right = seen = 0
    for images, labels in batches:
        images, labels = images.cuda(), labels.cuda()
        adv = pgd(model, images, labels)
        with torch.no_grad():
            right += (model(adv).argmax(1) == labels).sum().item()
        seen += len(labels)
    return right / seen


model = Net().cuda()
batches = [(torch.rand(96, 3, 160, 160), torch.randint(0, 100, (96,))) for _ in range(2)]
print(robust_accuracy(model, batches))
