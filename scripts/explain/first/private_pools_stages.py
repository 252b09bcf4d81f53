"""Each stage of a pipeline has a pool for itself, and none gives back what it no longer uses.

cause: private-pools
line: torch.randn(|scratch|torch.empty
"""

import torch
from torch import nn


class Stage:
    def __init__(self, size: int) -> None:
        self.pool = torch.cuda.MemPool()
        self.size = size

    def prepare(self) -> torch.Tensor:
        with torch.cuda.use_mem_pool(self.pool):
            scratch = torch.empty(self.size, 1024, 256, device="cuda")
            return scratch.amax(dim=(0, 1))


def main() -> None:
    stages = [Stage(600), Stage(500), Stage(400)]
    shift = torch.stack([stage.prepare().mean() for stage in stages]).mean()
    model = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = (model(torch.randn(24_000, 1536, device="cuda")) - shift).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
