"""An actor and a critic that one optimizer steps: they fit until it makes its state.

cause: first-step-surprise
line: optimizer.step()
"""

import torch
from torch import nn


def network(outputs):
    return nn.Sequential(
        nn.Linear(512, 6144), nn.Tanh(), nn.Linear(6144, 6144), nn.Tanh(), nn.Linear(6144, outputs)
    )


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = network(18)
        self.critic = network(1)
        self.model = network(6144 * 6)

    def forward(self, state):
        logits = self.actor(state)
        return torch.distributions.Categorical(logits=logits), self.critic(state), self.model(state)


agent = Agent().cuda()
optimizer = torch.optim.AdamW(agent.parameters(), lr=3e-4)
for _ in range(4):
    states = torch.randn(64, 512, device="cuda")
    returns = torch.randn(64, 1, device="cuda")
    policy, value, ahead = agent(states)
    actions = policy.sample()
    advantage = returns - value.detach()
    loss = -(policy.log_prob(actions) * advantage.squeeze(1)).mean() + (value - returns).square().mean()
    loss = loss + ahead.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
