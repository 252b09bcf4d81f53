"""A sweep of learning rates starts a training run for each rate at once, all on one card.

cause: other-processes
line:
remedy: end-other-process
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def train(rate, barrier):
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    held = torch.randn(24_000, 2048, device="cuda")
    barrier.wait()
    for _ in range(3):
        loss = model(held).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def other(rate, barrier, stop):
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
    held = torch.zeros(140_000, 2048, device="cuda")
    barrier.wait()
    stop.wait()
    del model, held


if __name__ == "__main__":
    context = mp.get_context("spawn")
    barrier, stop = context.Barrier(2), context.Event()
    second = context.Process(target=other, args=(0.01, barrier, stop), daemon=True)
    second.start()
    try:
        print(train(0.1, barrier))
    finally:
        stop.set()
