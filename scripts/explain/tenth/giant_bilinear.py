"""Bilinear pooling makes the product of all channels at every position, and then takes the mean.

cause: giant-request|too-big
line: torch.einsum|.unsqueeze(2)|outer =
remedy: by-parts|checkpointing|micro-batch|smaller-batch|autocast-bf16
false: no-grad|release-graph|drop-variables|keep-on-cpu|fused-optimizer|chunked-loss
"""

import torch
import torch.nn.functional as F
from torch import nn


class Backbone(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        chans = [3, 64, 128, width]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
                )
                for a, b in zip(chans, chans[1:])
            )
        )

    def forward(self, x):
        return self.layers(x)


class BilinearNet(nn.Module):
    def __init__(self, classes=200, width=256):
        super().__init__()
        self.backbone = Backbone(width)
        self.fc = nn.Linear(width * width, classes)

    def forward(self, images):
        f = self.backbone(images).flatten(2)
        outer = f.unsqueeze(1) * f.unsqueeze(2)
        pooled = outer.mean(-1).flatten(1)
        pooled = pooled.sign() * (pooled.abs() + 1e-5).sqrt()
        return self.fc(F.normalize(pooled))


def main():
    torch.manual_seed(0)
    model = BilinearNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(2):
        for _ in range(10):
            images = torch.randn(16, 3, 224, 224).cuda(non_blocking=True)
            target = torch.randint(0, 200, (16,)).cuda(non_blocking=True)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
