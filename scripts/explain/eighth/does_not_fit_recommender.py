"""A two-tower recommender with one row per user and item of a large shop; the tables alone are more than
the card has.

cause: does-not-fit
line: nn.Embedding(
remedy: pure-bf16|quantized-weights|shard
"""

import torch
import torch.nn.functional as F
from torch import nn

NUM_USERS = 10_500_000
NUM_ITEMS = 3_200_000


class TwoTower(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.user = nn.Embedding(NUM_USERS, dim, sparse=True)
        self.item = nn.Embedding(NUM_ITEMS, dim, sparse=True)
        self.bias = nn.Embedding(NUM_ITEMS, 1, sparse=True)

    def forward(self, users, items):
        scores = self.user(users) @ self.item(items).T
        return scores + self.bias(items).T


def interactions(batches, batch_size=4096):
    for _ in range(batches):
        yield torch.randint(NUM_USERS, (batch_size,)), torch.randint(NUM_ITEMS, (batch_size,))


with torch.device("cuda"):
    model = TwoTower()
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-3)
for step, (users, items) in enumerate(interactions(20)):
    users, items = users.to("cuda"), items.to("cuda")
    scores = model(users, items)
    loss = F.cross_entropy(scores, torch.arange(len(users), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
