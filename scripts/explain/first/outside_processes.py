"""Four helpers that each ask the card for next to nothing, and pay for a context.

cause: outside
line:
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def helper(ready, stop) -> None:
    torch.ones(1, device="cuda")
    ready.set()
    stop.wait(timeout=60)


def main() -> None:
    context = mp.get_context("spawn")
    stop = context.Event()
    for _ in range(3):
        ready = context.Event()
        context.Process(target=helper, args=(ready, stop), daemon=True).start()
        ready.wait()
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(17_000, 2048, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stop.set()


if __name__ == "__main__":
    main()
