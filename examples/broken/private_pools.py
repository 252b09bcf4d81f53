"""Features are made in a pool of their own; what it holds and does not use, the training may not have."""

import torch
from torch import nn

POOL = torch.cuda.MemPool()


def statistics(device: torch.device) -> torch.Tensor:
    with torch.cuda.use_mem_pool(POOL):
        features = torch.randn(640, 1024, 1024, device=device)
        mean = features.mean(dim=(1, 2))
        del features
    return mean


def main() -> None:
    device = torch.device("cuda")
    offset = statistics(device).mean()
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        inputs = torch.randn(16384, 2048, device=device) - offset
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
