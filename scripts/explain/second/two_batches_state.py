"""A big model of which all gradients stay until after the next forward, in a loop with a closure.

cause: two-batches-alive
line:
"""

import torch
from torch import nn


def build():
    return nn.Sequential(
        nn.Embedding(120_000, 1024), *(part for _ in range(12) for part in (nn.Linear(1024, 1024), nn.GELU()))
    )


def main():
    model = build().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(4):
        tokens = torch.randint(0, 120_000, (40, 230), device="cuda")
        loss = model(tokens).float().pow(2).mean()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss.backward()
        optimizer.step()


main()
