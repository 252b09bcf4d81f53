"""Crops grow from epoch to epoch; the hardest embeddings so far stay on the card, a few MiB at a time.

cause: fragmented
line:
"""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.body(points)


class HardExamples:
    """Keeps a bounded number of embeddings."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[tuple[float, torch.Tensor]] = []

    def offer(self, score: float, embedding: torch.Tensor) -> None:
        self.kept.append((score, embedding.clone()))
        self.kept = self.kept[-self.size :]


def main() -> None:
    model = Embedder().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hard = HardExamples(150)
    for step in range(260):
        points = torch.randn(16_000 + 500 * step, 64, device="cuda")
        embedding = model(points)
        loss = embedding.square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        hard.offer(float(step), embedding.detach()[:1500])
        embedding = loss = points = None


main()
