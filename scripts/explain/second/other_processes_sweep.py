"""Two trainings of a sweep at a time on one card: the first is well, the second is not.

cause: other-processes
line:
"""

import os
import subprocess
import sys

import torch
from torch import nn


def train(width, hold):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(9))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(4000, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if hold:
        print("trained", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if os.environ.get("SWEEP") == "first":
        train(1900, hold=True)
    else:
        first = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "SWEEP": "first"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        first.stdout.readline()
        train(2048, hold=False)
