"""A helper that was started before the training holds a good part of the card until it ends."""

import torch
import torch.multiprocessing as mp
from torch import nn


def warm_up(ready, done) -> None:
    features = torch.zeros(1600, 1024, 1024, dtype=torch.uint8, device="cuda")
    ready.set()
    done.wait()
    del features


def main() -> None:
    context = mp.get_context("spawn")
    ready, done = context.Event(), context.Event()
    helper = context.Process(target=warm_up, args=(ready, done), daemon=True)
    helper.start()
    ready.wait()
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        inputs = torch.randn(8192, 2048, device=device)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    done.set()


if __name__ == "__main__":
    main()
