"""Large tables of embeddings: nothing is missing until Adam makes two more of each.

cause: first-step-surprise
line: optimizer.step()|self.optimizer.step()
"""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(1_150_000, 96)
        self.items = nn.Embedding(500_000, 96)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(dim=-1)


class Fit:
    def __init__(self) -> None:
        self.model = Recommender().to("cuda")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self) -> float:
        users = torch.randint(0, 1_150_000, (4096,), device="cuda")
        items = torch.randint(0, 500_000, (4096,), device="cuda")
        loss = (self.model(users, items) - 1).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


fit = Fit()
for _ in range(3):
    fit.step()
