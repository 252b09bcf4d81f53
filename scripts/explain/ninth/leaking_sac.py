"""Soft actor-critic from pixels keeps its replay memory as float32 tensors on the card.

cause: leaking
line: self.memory.append(|agent.memory.append(|self.remember(|agent.remember(
remedy: keep-on-cpu
"""

import random
from collections import deque

import torch
from torch import nn

ENVS = 64


class PixelEnv:
    """Vectorised environments that are simulated on the GPU."""

    def reset(self):
        return torch.rand(ENVS, 9, 84, 84, device="cuda")

    def step(self, action):
        return torch.rand(ENVS, 9, 84, 84, device="cuda"), action.mean(-1), torch.zeros(ENVS, device="cuda")


class Encoder(nn.Sequential):
    def __init__(self, out):
        super().__init__(
            nn.Conv2d(9, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(32 * 36, out),
        )  # fmt: skip


class Agent:
    def __init__(self, capacity=100_000):
        self.memory = deque(maxlen=capacity)
        self.actor, self.critic = Encoder(6).cuda(), Encoder(1).cuda()
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], 1e-4)

    @torch.no_grad()
    def act(self, obs):
        return torch.tanh(self.actor(obs))

    def remember(self, obs, action, reward, done):
        self.memory.append((obs, action, reward, done))

    def update(self):
        obs, _, reward, _ = random.choice(self.memory)
        loss = (self.critic(obs).squeeze(-1) - reward).square().mean() - self.actor(obs).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


env, agent = PixelEnv(), Agent()
obs = env.reset()
for frame in range(3000):
    action = agent.act(obs)
    next_obs, reward, done = env.step(action)
    agent.remember(obs, action, reward, done)
    obs = next_obs
    if frame > 4 and frame % 4 == 0:
        agent.update()
