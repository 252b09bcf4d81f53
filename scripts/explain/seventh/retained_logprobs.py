"""REINFORCE: the log-probabilities of an episode are kept for its loss, and the list is never emptied.

cause: retained-graph
line: self.log_probs.append|log_prob|self.policy(|policy(
remedy: release-graph
"""

import torch
from torch import nn
from torch.distributions import Normal


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(
            nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 8)
        ).cuda()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.log_probs = []

    def act(self, states):
        distribution = Normal(self.policy(states), 1.0)
        action = distribution.sample()
        self.log_probs.append(distribution.log_prob(action).sum(-1))
        return action

    def learn(self, returns, horizon):
        loss = -(torch.stack(self.log_probs[-horizon:]) * returns).mean()
        self.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.optimizer.step()


agent = Agent()
for episode in range(30):
    states = torch.randn(4096, 64, device="cuda")
    for _ in range(10):
        action = agent.act(states)
        states = torch.randn(4096, 64, device="cuda")
    agent.learn(torch.randn(10, 4096, device="cuda"), 10)
