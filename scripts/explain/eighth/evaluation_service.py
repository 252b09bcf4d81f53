"""A super-resolution service: requests are batched and sent through a network that is only in eval mode.

cause: evaluation-with-gradients
line: self.model(|upscale(|handle(
remedy: no-grad
"""

import queue
import time

import torch
from torch import nn


class RDB(nn.Module):
    """Residual dense block, three convolutions."""

    def __init__(self, nf=48, gc=24):
        super().__init__()
        self.conv1 = nn.Conv2d(nf, gc, 3, 1, 1)
        self.conv2 = nn.Conv2d(nf + gc, gc, 3, 1, 1)
        self.conv3 = nn.Conv2d(nf + 2 * gc, nf, 3, 1, 1)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        x1 = self.act(self.conv1(x))
        x2 = self.act(self.conv2(torch.cat((x, x1), 1)))
        return x + 0.2 * self.conv3(torch.cat((x, x1, x2), 1))


class Upscaler:
    def __init__(self, blocks=12, scale=2):
        trunk = [RDB() for _ in range(blocks)]
        tail = [nn.Conv2d(48, 3 * scale * scale, 3, 1, 1), nn.PixelShuffle(scale)]
        self.model = nn.Sequential(nn.Conv2d(3, 48, 3, 1, 1), *trunk, *tail)
        self.model.to("cuda").eval()

    def upscale(self, pictures):
        batch = torch.stack(pictures).to("cuda").float() / 255
        out = self.model(batch).clamp(0, 1)
        return (out * 255).round().byte().cpu()


def handle(requests, service, max_batch=4):
    while not requests.empty():
        pictures = [requests.get() for _ in range(min(max_batch, requests.qsize()))]
        begin = time.perf_counter()
        answers = service.upscale(pictures)
        print(f"{len(answers)} pictures in {time.perf_counter() - begin:.2f} s")


inbox = queue.Queue()
for _ in range(20):
    inbox.put(torch.zeros(3, 360, 640, dtype=torch.uint8))
handle(inbox, Upscaler())
