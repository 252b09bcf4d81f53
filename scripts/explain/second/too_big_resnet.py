"""A residual network in the style of torchvision's, images of 256, and a batch for a larger card.

cause: too-big
line: self.stages|stage(|block(|self.conv1|self.conv2
"""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.short = (
            nn.Conv2d(inside, outside, 1, stride) if stride != 1 or inside != outside else nn.Identity()
        )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.short(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [(3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        self.stages = nn.ModuleList(Residual(*width) for width in widths)
        self.fc = nn.Linear(128, 100)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean((2, 3)))


def train(loader, model, optimizer):
    for images, labels in loader:
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


data = torch.utils.data.TensorDataset(torch.zeros(96, 3, 256, 256), torch.zeros(96, dtype=torch.long))
net = Net().cuda()
train(
    torch.utils.data.DataLoader(data, batch_size=32),
    net,
    torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
)
