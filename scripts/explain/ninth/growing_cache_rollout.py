"""Observations of a rollout are appended with `torch.cat`, so that two copies of the rollout exist at times.

cause: growing-cache
line: self.observations = torch.cat(|rollout.add(
remedy: preallocate|keep-on-cpu
"""

import torch
from torch import nn


class Rollout:
    def __init__(self):
        self.observations = torch.empty(0, 64, 4, 84, 84, device="cuda")
        self.rewards = torch.empty(0, 64, device="cuda")

    def add(self, obs, reward):
        self.observations = torch.cat([self.observations, obs[None]])
        self.rewards = torch.cat([self.rewards, reward[None]])

    def returns(self, gamma=0.99):
        out, running = torch.zeros_like(self.rewards), 0
        for t in reversed(range(len(self.rewards))):
            running = self.rewards[t] + gamma * running
            out[t] = running
        return out


policy = nn.Sequential(
    nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 81, 6)
).cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

for iteration in range(4):
    rollout = Rollout()
    obs = torch.zeros(64, 4, 84, 84, device="cuda")
    with torch.no_grad():
        for t in range(256):
            action = policy(obs).argmax(-1)
            frame = torch.rand(64, 1, 84, 84, device="cuda")
            obs = torch.cat([obs[:, 1:], frame], dim=1)
            rollout.add(obs, action.float())
    advantage = rollout.returns().flatten()
    flat = rollout.observations.flatten(0, 1)
    for i in torch.randperm(len(flat)).split(512)[:8]:
        i = i.cuda()
        loss = -(policy(flat[i]).log_softmax(-1).amax(-1) * advantage[i]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(iteration, loss.item())
