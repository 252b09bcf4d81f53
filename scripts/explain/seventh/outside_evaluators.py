"""Four processes that reckon metrics were given the GPU's device by default; each has a context on the
card.

cause: outside
line:
remedy: cpu-only-workers|end-other-process
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def evaluator(inbox, ready, device="cuda"):
    running = torch.zeros(8, device=device)
    ready.release()
    while (value := inbox.get()) is not None:
        running += value


def main():
    context = mp.get_context("spawn")
    ready = context.Semaphore(0)
    boxes = [context.Queue() for _ in range(4)]
    helpers = [context.Process(target=evaluator, args=(box, ready), daemon=True) for box in boxes]
    for helper in helpers:
        helper.start()
    for _ in helpers:
        ready.acquire()
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    try:
        for _ in range(3):
            loss = model(torch.randn(72, 3, 256, 256, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for box in boxes:
                box.put(1.0)
    finally:
        for box in boxes:
            box.put(None)


if __name__ == "__main__":
    main()
