"""A Lagrange multiplier is updated with a measured constraint, and takes its graph along.

cause: retained-graph
line: self.lam = |lam + |violation
remedy: release-graph|no-grad
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self, inputs=64, hidden=1024, actions=8):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor, self.cost = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.actor(h), self.cost(h)[:, 0]


class Multiplier:
    """Dual ascent on `cost <= limit`."""

    def __init__(self, limit, rate=1e-2):
        self.limit, self.rate = limit, rate
        self.lam = torch.zeros((), device="cuda")

    def update(self, violation):
        self.lam = (self.lam + self.rate * (violation - self.limit)).clamp(min=0.0)

    def weight(self):
        return self.lam.item()


def policy_loss(policy, obs, actions, advantages, weight):
    logits, cost = policy(obs)
    logp = F.log_softmax(logits, dim=-1).gather(1, actions[:, None])[:, 0]
    return -(logp * advantages).mean() + weight * cost.mean()


policy = Policy().cuda()
multiplier = Multiplier(limit=0.1)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for update in range(500):
    obs = torch.randn(4096, 64, device="cuda")
    actions = torch.randint(0, 8, (4096,), device="cuda")
    advantages = torch.randn(4096, device="cuda")
    loss = policy_loss(policy, obs, actions, advantages, multiplier.weight())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    fresh = torch.randn(8192, 64, device="cuda")
    _, cost = policy(fresh)
    multiplier.update(cost.relu().mean())
    if update % 50 == 0:
        print(update, loss.item(), multiplier.weight())
