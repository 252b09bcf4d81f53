"""Large embedding tables: everything fits until Adam makes its moments in the first step.

cause: first-step-surprise
line: optimizer.step()
"""

import torch
from torch import nn
from torch.nn import functional as F


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(700_000, 128)
        self.items = nn.Embedding(900_000, 128)
        self.score = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users, items):
        return self.score(torch.cat([self.users(users), self.items(items)], dim=1)).squeeze(1)


with torch.device("cuda"):
    model = Recommender()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    users = torch.randint(0, 700_000, (4096,), device="cuda")
    items = torch.randint(0, 900_000, (4096,), device="cuda")
    loss = F.binary_cross_entropy_with_logits(model(users, items), torch.rand(4096, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
