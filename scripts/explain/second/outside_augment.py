"""Augmentation "on the GPU", in a pool of processes.

cause: outside
line:
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def augment(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return float(torch.rand(16, device="cuda", generator=generator).sum())


def main():
    with mp.get_context("spawn").Pool(3) as pool:
        pool.map(augment, range(12), chunksize=1)
        model = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(8))).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(3):
            scale = pool.apply(augment, (step,))
            images = torch.randn(20, 64, 176, 176, device="cuda") * scale
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
