"""A random search starts three trials at once, and the card has memory for two.

cause: other-processes
remedy: end-other-process
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def trial(number, batch_size, steps):
    """Train one configuration; all trials run side by side."""
    torch.manual_seed(number)
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0 ** -(number + 1))
    batch = torch.randn(batch_size, 2048, device="cuda")
    for step in range(steps):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(number, loss.item())


def main():
    mp.spawn(trial, args=(10_240, 20_000), nprocs=3)


if __name__ == "__main__":
    main()
