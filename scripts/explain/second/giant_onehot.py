"""Labels of a segmentation as one-hot floats, for a loss written by hand.

cause: giant-request
line: one_hot
"""

import torch
from torch import nn
from torch.nn import functional as F


def dice(probabilities, labels, classes):
    truth = F.one_hot(labels, classes).permute(0, 3, 1, 2).float()
    return 1 - (probabilities * truth).sum() / (probabilities + truth).sum()


model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=4), nn.ReLU(), nn.Conv2d(8, 150, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    images = torch.randn(16, 3, 1024, 1024, device="cuda")
    labels = torch.randint(0, 150, (16, 256, 256), device="cuda")
    loss = dice(torch.softmax(model(images), 1), labels, 150)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
