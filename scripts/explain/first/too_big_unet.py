"""A U-Net on full-size scans: each level keeps what it made for the backward.

cause: too-big
line: self.down1(x)|self.up1(|torch.relu(self.conv
"""

import torch
from torch import nn
from torch.nn import functional as F


class Double(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        return torch.relu(self.conv2(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.down3 = Double(1, 24), Double(24, 48), Double(48, 96)
        self.up2, self.up1 = Double(96 + 48, 48), Double(48 + 24, 24)
        self.head = nn.Conv2d(24, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        third = self.down3(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([F.interpolate(third, scale_factor=2), second], dim=1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), first], dim=1))
        return self.head(x)


model = UNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    scans = torch.randn(14, 1, 512, 512, device="cuda")
    truth = torch.randint(0, 2, (14, 512, 512), device="cuda")
    loss = F.cross_entropy(model(scans), truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
