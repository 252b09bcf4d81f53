"""Two large tables of factors with Adam: forward and backward fit, the moments do not.

cause: first-step-surprise
line: optimizer.step()|opt.step()
remedy: foreach-off|fused-optimizer|8-bit-optimizer
remedy: optimizer-in-backward|adafactor|bf16-optimizer-state|host-optimizer-state
"""

import torch
from torch import nn


class Factors(nn.Module):
    def __init__(self, users=720_000, items=150_000, width=192):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


model = Factors().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    user = torch.randint(0, 720_000, (8192,), device="cuda")
    item = torch.randint(0, 150_000, (8192,), device="cuda")
    rating = torch.rand(8192, device="cuda")
    loss = nn.functional.mse_loss(model(user, item), rating)
    opt.zero_grad()
    loss.backward()
    opt.step()
