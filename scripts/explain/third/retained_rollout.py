"""PPO: the rollout's values are kept with their graphs, since the policy is called without no_grad, and never
let go.

cause: retained-graph
line: self.torso|self.body|policy(|self.value
"""

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.hidden = nn.Linear(3136, 512)
        self.action, self.value = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, observation):
        hidden = torch.relu(self.hidden(self.torso(observation)))
        return Categorical(logits=self.action(hidden)), self.value(hidden).squeeze(-1)


class Rollout:
    def __init__(self):
        self.values, self.rewards, self.log_probs = [], [], []

    def add(self, value, reward, log_prob):
        self.values.append(value)
        self.rewards.append(reward)
        self.log_probs.append(log_prob)


def main(environments=256, horizon=8, updates=40):
    policy = Policy().cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2.5e-4)
    rollout = Rollout()
    for _ in range(updates):
        for _ in range(horizon):
            observation = torch.rand(environments, 4, 84, 84).cuda()
            distribution, value = policy(observation)
            action = distribution.sample()
            rollout.add(value, torch.rand(environments), distribution.log_prob(action))
        distribution, value = policy(observation)
        returns = sum(reward.mean() for reward in rollout.rewards[-horizon:])
        loss = (value - returns.cuda()).square().mean() - 0.01 * distribution.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
