"""Actors of a reinforcement learning set-up each keep a copy of a large value network on the learner's card.

cause: other-processes
line:
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def network():
    return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6)))


def act(ready, stop):
    model = network().cuda()
    frames = torch.zeros(200, 1024, 1024, dtype=torch.uint8, device="cuda")
    ready.put(sum(p.numel() for p in model.parameters()) + frames.numel())
    stop.wait(60)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    ready, stop = context.Queue(), context.Event()
    actors = [context.Process(target=act, args=(ready, stop), daemon=True) for _ in range(2)]
    for actor in actors:
        actor.start()
    for _ in actors:
        ready.get()
    learner = network().cuda()
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
    try:
        for _ in range(3):
            loss = learner(torch.randn(4096, 4096, device="cuda")).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        stop.set()
