"""A logger keeps one picture of each step "for the report", on the card.

cause: leaking
line: model(batch)|heat.mean|overlay
"""

from collections import defaultdict

import torch
from torch import nn


class Logger:
    def __init__(self) -> None:
        self.history: dict[str, list[torch.Tensor]] = defaultdict(list)

    def log(self, name: str, value: torch.Tensor) -> None:
        self.history[name].append(value)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, logger: Logger) -> None:
    batch = torch.randn(32, 3, 128, 128, device="cuda")
    out = model(batch)
    loss = (out - 1).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logger.log("loss", loss.detach())
    overlay = torch.sigmoid(out.detach())
    logger.log("overlay", overlay)


def main() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    logger = Logger()
    for _ in range(100):
        step(model, optimizer, logger)


main()
