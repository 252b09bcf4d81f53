"""`max_split_size_mb` was copied from a forum. With batches that grow, oversize blocks are never used again."""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:21")

import torch
from torch import nn


def main() -> None:
    device = torch.device("cuda")
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        rows = 49152 - 3072 * (step % 6)
        inputs = torch.randn(rows, 512, device=device)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
