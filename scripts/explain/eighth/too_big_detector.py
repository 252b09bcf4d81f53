"""A one-stage detector with a feature pyramid, on full street scenes instead of the usual crops.

cause: too-big
line: detector(images)|c2 = self.|c3 = self.|c4 = self.|p4 = self.|p3 = self.|p2 = self.|self.cls(p)
remedy: checkpointing|activation-offload|micro-batch|activation-budget
"""

import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)
    )


class Detector(nn.Module):
    def __init__(self, classes=10, anchors=9):
        super().__init__()
        self.stem = conv_bn(3, 32, 2)
        self.c2 = nn.Sequential(conv_bn(32, 64, 2), conv_bn(64, 64), conv_bn(64, 64))
        self.c3 = nn.Sequential(conv_bn(64, 128, 2), conv_bn(128, 128), conv_bn(128, 128))
        self.c4 = nn.Sequential(conv_bn(128, 256, 2), conv_bn(256, 256))
        self.lateral = nn.ModuleList([nn.Conv2d(c, 128, 1) for c in (64, 128, 256)])
        self.cls = nn.Sequential(*[conv_bn(128, 128) for _ in range(4)], nn.Conv2d(128, anchors * classes, 1))
        self.box = nn.Sequential(*[conv_bn(128, 128) for _ in range(4)], nn.Conv2d(128, anchors * 4, 1))

    def forward(self, images):
        c2 = self.c2(self.stem(images))
        c3 = self.c3(c2)
        c4 = self.c4(c3)
        p4 = self.lateral[2](c4)
        p3 = self.lateral[1](c3) + F.interpolate(p4, size=c3.shape[-2:])
        p2 = self.lateral[0](c2) + F.interpolate(p3, size=c2.shape[-2:])
        return [(self.cls(p), self.box(p)) for p in (p2, p3, p4)]


def focal(logits, alpha=0.25, gamma=2.0):
    p = logits.sigmoid()
    return (alpha * p.pow(gamma) * F.softplus(logits)).mean()


def main():
    detector = Detector().to("cuda")
    optimizer = torch.optim.SGD(detector.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 11])
    for _epoch in range(12):
        for _ in range(5):
            images = torch.rand(6, 3, 1024, 1920).to("cuda", non_blocking=True)
            loss = sum(focal(cls) + box.abs().mean() for cls, box in detector(images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main()
