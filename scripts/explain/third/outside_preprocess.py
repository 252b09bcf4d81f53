"""A pool of processes normalises on the card; each brings a CUDA context of its own.

cause: outside
line:
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def normalise(index):
    x = torch.randn(64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(index))
    return ((x - x.mean()) / x.std()).cpu()


if __name__ == "__main__":
    pool = mp.get_context("spawn").Pool(4)
    pool.map(normalise, range(8))
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(10))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(14000, 2048, device="cuda")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pool.terminate()
