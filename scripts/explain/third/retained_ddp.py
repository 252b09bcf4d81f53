"""DistributedDataParallel; the regulariser's value of each step is added up for the log before the backward
has freed it.

cause: retained-graph
line: self.net|self.stem|layer(
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8))

    def forward(self, x):
        smoothness = 0.0
        for layer in self.layers:
            y = torch.tanh(layer(x))
            smoothness = smoothness + (y - x).square().mean()
            x = y
        return x, smoothness


def main():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29581")
    dist.init_process_group("nccl", rank=0, world_size=1)
    model = DistributedDataParallel(Net().cuda(), device_ids=[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    running = torch.zeros((), device="cuda")
    for step in range(60):
        x = torch.randn(2048, 1024, device="cuda")
        with torch.enable_grad():
            _, penalty = model.module(x)
        running = running + penalty
        out, _ = model(x)
        loss = out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print("smoothness", running.item() / 50)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
