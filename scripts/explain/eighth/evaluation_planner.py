"""A world model imagines the future of thousands of plans; nobody takes a gradient of it.

cause: evaluation-with-gradients
line: world.imagine(|self.cell(|self.reward(|plan(
remedy: no-grad
"""

import torch
from torch import nn


class WorldModel(nn.Module):
    def __init__(self, obs=39, act=8, hidden=512):
        super().__init__()
        self.encode = nn.Linear(obs, hidden)
        self.cell = nn.GRUCell(act, hidden)
        self.reward = nn.Sequential(nn.Linear(hidden, 256), nn.ELU(), nn.Linear(256, 1))
        self.decode = nn.Linear(hidden, obs)

    def imagine(self, obs, actions):
        state = torch.tanh(self.encode(obs)).expand(actions.shape[1], -1)
        total = 0
        for action in actions:
            state = self.cell(action, state)
            total = total + self.reward(state).squeeze(-1)
        return total


def plan(world, obs, horizon=40, candidates=8192, iterations=4, elite=256):
    mean = torch.zeros(horizon, 1, 8, device="cuda")
    std = torch.ones_like(mean)
    for _ in range(iterations):
        actions = (mean + std * torch.randn(horizon, candidates, 8, device="cuda")).clamp(-1, 1)
        returns = world.imagine(obs, actions)
        best = actions[:, returns.topk(elite).indices]
        mean, std = best.mean(1, keepdim=True), best.std(1, keepdim=True)
    return mean[0, 0]


world = WorldModel().cuda()
optimizer = torch.optim.Adam(world.parameters(), lr=3e-4)
for episode in range(3):
    for _ in range(5):
        obs, actions = torch.randn(12, 64, 39, device="cuda"), torch.randn(12, 64, 8, device="cuda")
        state, loss = torch.tanh(world.encode(obs[0])), 0
        for t in range(11):
            state = world.cell(actions[t], state)
            loss = loss + (world.decode(state) - obs[t + 1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    action = plan(world, torch.randn(1, 39, device="cuda"))
    print(episode, action.cpu())
