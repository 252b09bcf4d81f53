"""An old server of the same user occupies the GPU; this training run was started anyway.

cause: other-processes
line:
"""

import subprocess
import sys

import torch
from torch import nn

SERVER = "import torch, sys; held = torch.zeros(1_500_000_000, dtype=torch.uint8, device='cuda'); print('up', flush=True); sys.stdin.read()"


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    server.stdout.readline()
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(14))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(4096, 2048, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    server.communicate()


if __name__ == "__main__":
    main()
