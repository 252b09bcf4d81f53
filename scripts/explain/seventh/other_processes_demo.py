"""A demo of the last model still runs when training is started.

cause: other-processes
line:
remedy: end-other-process
"""

import subprocess
import sys

import torch
from torch import nn

DEMO = """
import sys, torch
weights = [torch.empty(256, 1024, 1024, device="cuda") for _ in range(2)]
print("up", flush=True)
sys.stdin.readline()
"""


def main():
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    demo.stdout.readline()
    try:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            x = torch.randn(16_384, 1024, device="cuda")
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        demo.stdin.write("\n")
        demo.stdin.flush()


if __name__ == "__main__":
    main()
