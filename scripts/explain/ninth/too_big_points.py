"""Per-point layers of a segmentation network over scans of 32,768 points: the activations do not fit.

cause: too-big
line: self.local(|self.fuse(|layer(x)|model(points)
remedy: checkpointing|micro-batch|smaller-batch|autocast-fp16|activation-offload
"""

import argparse

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv1d(a, b, 1, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class PointSegmenter(nn.Module):
    def __init__(self, classes=13):
        super().__init__()
        self.local = mlp(6, 64, 64, 128, 128, 256, 256)
        self.fuse = mlp(512, 256, 256, 128)
        self.head = nn.Conv1d(128, classes, 1)

    def forward(self, points):
        x = self.local(points)
        top = x.amax(dim=2, keepdim=True).expand_as(x)
        return self.head(self.fuse(torch.cat([x, top], dim=1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--points", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args([])

    device = torch.device("cuda:0")
    model = PointSegmenter().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for step in range(args.steps):
        points = torch.randn(args.batch_size, 6, args.points, device=device)
        labels = torch.randint(13, (args.batch_size, args.points), device=device)
        optimizer.zero_grad()
        logits = model(points)
        loss = criterion(logits, labels)
        loss.backward()
        optimizer.step()
        print(f"[{step}] {loss.item():.4f}")


if __name__ == "__main__":
    main()
