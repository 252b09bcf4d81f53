"""The kernel of yesterday's notebook still holds its model on the card.

cause: other-processes
remedy: end-other-process
"""

import subprocess
import sys

import torch
from torch import nn

NOTEBOOK = """
import sys
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(6144, 6144, device="cuda") for _ in range(10)])
print("In [7]:", flush=True)
sys.stdin.read()
"""


def classifier():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def train(steps=20):
    model = classifier().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x, y = torch.randn(48, 3, 224, 224, device="cuda"), torch.randint(10, (48,), device="cuda")
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    kernel = subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    kernel.stdout.readline()
    try:
        print(train())
    finally:
        kernel.stdin.close()
        kernel.wait()
