"""DQN on game frames with the replay memory on the card, made for a hundred thousand transitions.

cause: growing-cache
line: self.memory.append(|replay.push(
remedy: keep-on-cpu
"""

import random
from collections import deque

import torch
from torch import nn


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *transition):
        self.memory.append(transition)

    def sample(self, n):
        return [torch.cat(column) for column in zip(*random.sample(self.memory, n), strict=True)]


class QNet(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        return self.fc(self.conv(x))


policy, target = QNet().cuda(), QNet().cuda()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.RMSprop(policy.parameters(), lr=2.5e-4)
replay = ReplayMemory(100_000)
state = torch.zeros(32, 4, 84, 84, device="cuda")
for t in range(5000):
    with torch.no_grad():
        action = policy(state).argmax(1) if random.random() > 0.1 else torch.randint(6, (32,), device="cuda")
    frame, reward = torch.rand(32, 1, 84, 84, device="cuda"), torch.randn(32, device="cuda")
    next_state = torch.cat([state[:, 1:], frame], 1)
    replay.push(state, action, reward, next_state)
    state = next_state
    if t > 50 and t % 4 == 0:
        s, a, r, s2 = replay.sample(4)
        with torch.no_grad():
            y = r + 0.99 * target(s2).max(1).values
        loss = nn.functional.smooth_l1_loss(policy(s).gather(1, a[:, None]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if t % 500 == 0:
        target.load_state_dict(policy.state_dict())
