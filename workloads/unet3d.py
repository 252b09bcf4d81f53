"""Segmentation of volumes with a 3-D U-Net."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(outputs, outputs, 3, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet3d(nn.Module):
    def __init__(self, channels, classes, width=16, depth=3):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.encoder = nn.ModuleList([block(channels, widths[0])])
        self.encoder.extend(block(a, b) for a, b in zip(widths, widths[1:]))
        self.decoder = nn.ModuleList(block(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        skips = []
        for stage in self.encoder[:-1]:
            x = stage(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = self.encoder[-1](x)
        for stage in self.decoder:
            x = F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
            x = stage(torch.cat([x, skips.pop()], dim=1))
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volume-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = UNet3d(1, args.classes, args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    shape = (args.volume_size,) * 3

    model.train()
    for step in range(args.steps):
        volumes = torch.rand(args.batch_size, 1, *shape).to(device)
        labels = torch.randint(args.classes, (args.batch_size, *shape)).to(device)
        loss = F.cross_entropy(model(volumes), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
