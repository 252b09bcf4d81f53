"""One large picture through a super-resolution network in evaluation mode, which is not no_grad.

cause: evaluation-with-gradients
line: net(|upscale(|model(
remedy: no-grad
false: checkpointing|activation-offload|micro-batch|drop-variables|keep-on-cpu|release-graph|fused-optimizer
"""

import sys
import time

import torch
from torch import nn


class ResidualDense(nn.Module):
    def __init__(self, c=64, growth=32):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c + i * growth, growth, 3, padding=1) for i in range(4))
        self.last = nn.Conv2d(c + 4 * growth, c, 3, padding=1)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        features = [x]
        for conv in self.convs:
            features.append(self.act(conv(torch.cat(features, dim=1))))
        return x + 0.2 * self.last(torch.cat(features, dim=1))


class Upscaler(nn.Module):
    def __init__(self, c=64, blocks=8, scale=4):
        super().__init__()
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(*[ResidualDense(c) for _ in range(blocks)])
        self.tail = nn.Sequential(nn.Conv2d(c, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale))

    def forward(self, x):
        x = self.head(x)
        return self.tail(x + self.body(x))


def load_picture(path=None, size=(3, 360, 480)):
    return torch.rand(size)


def upscale(net, picture):
    start = time.time()
    output = net(picture.unsqueeze(0).to("cuda"))
    print(f"{time.time() - start:.2f} s", file=sys.stderr)
    return output.squeeze(0).clamp(0, 1).mul(255).byte().cpu()


def main():
    net = Upscaler()
    net.eval()
    net.cuda()
    for path in ["a.png", "b.png", "c.png"]:
        image = upscale(net, load_picture(path))
        print(path, tuple(image.shape))


main()
