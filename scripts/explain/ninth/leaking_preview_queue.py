"""A logging thread writes previews more slowly than training makes them, and they wait on the card.

cause: leaking
line: self.inbox.put(|logger.images(|logger.log(
remedy: keep-on-cpu
"""

import queue
import threading
import time

import torch
from torch import nn


class PreviewLogger(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()
        self.written = 0

    def log(self, step, images):
        self.inbox.put((step, images.detach().clamp(0, 1)))

    def run(self):
        while True:
            _, images = self.inbox.get()
            time.sleep(2.0)  # encodes and uploads
            self.written += len(images)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 3, 3, padding=1),
        )

    def forward(self, x):
        return x - self.net(x)


def main(steps=400):
    logger = PreviewLogger()
    logger.start()
    denoiser = Denoiser().cuda()
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=1e-3)
    for step in range(steps):
        clean = torch.rand(16, 3, 384, 384, device="cuda")
        noisy = clean + 0.1 * torch.randn_like(clean)
        restored = denoiser(noisy)
        loss = nn.functional.l1_loss(restored, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.log(step, restored)
    print(logger.written)


if __name__ == "__main__":
    main()
