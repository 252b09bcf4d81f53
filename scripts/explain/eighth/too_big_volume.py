"""Kidney segmentation by a 3D U-Net on patches of 112 voxels, two at a time.

cause: too-big
line: model(scan)|e1 = self.|e2 = self.|e3 = self.|d2 = self.|d1 = self.
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|micro-batch|activation-budget
"""

import torch
import torch.nn as nn


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(cout, cout, 3, padding=1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01),
    )


class UNet3D(nn.Module):
    def __init__(self, base=24, classes=3):
        super().__init__()
        self.enc1 = double_conv(1, base)
        self.enc2 = double_conv(base, base * 2)
        self.enc3 = double_conv(base * 2, base * 4)
        self.pool = nn.MaxPool3d(2)
        self.up2 = nn.ConvTranspose3d(base * 4, base * 2, 2, stride=2)
        self.dec2 = double_conv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose3d(base * 2, base, 2, stride=2)
        self.dec1 = double_conv(base * 2, base)
        self.out = nn.Conv3d(base, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(self.pool(e1))
        e3 = self.enc3(self.pool(e2))
        d2 = self.dec2(torch.cat([self.up2(e3), e2], 1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], 1))
        return self.out(d1)


def dice_loss(logits, target):
    probs = logits.softmax(1)[:, 1:]
    onehot = torch.stack([target == 1, target == 2], 1).float()
    inter = (probs * onehot).sum((2, 3, 4))
    return 1 - (2 * inter / (probs.sum((2, 3, 4)) + onehot.sum((2, 3, 4)) + 1e-5)).mean()


model = UNet3D().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
for epoch in range(2):
    for _ in range(10):
        scan = torch.randn(2, 1, 112, 112, 112, device="cuda")
        label = torch.randint(0, 3, (2, 112, 112, 112), device="cuda")
        optimizer.zero_grad()
        loss = dice_loss(model(scan), label)
        loss.backward()
        optimizer.step()
