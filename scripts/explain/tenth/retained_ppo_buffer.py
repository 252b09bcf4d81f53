"""A rollout buffer keeps values and log-probabilities with their graphs, since nobody switched gradients off.

cause: retained-graph|evaluation-with-gradients
line: buffer.add|self.values.append|self.logprobs.append|agent.act|agent(obs)
remedy: no-grad|release-graph
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments
false: activation-offload
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self, actions=18):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
        )
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def act(self, obs, action=None):
        hidden = self.network(obs)
        probs = Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)[:, 0]


class Buffer:
    def __init__(self):
        self.obs, self.actions, self.logprobs, self.values, self.rewards = [], [], [], [], []

    def add(self, obs, action, logprob, value, reward):
        self.obs.append(obs)
        self.actions.append(action)
        self.logprobs.append(logprob)
        self.values.append(value)
        self.rewards.append(reward)


def returns(rewards, last, gamma=0.99):
    out = []
    for reward in reversed(rewards):
        last = reward + gamma * last
        out.append(last)
    return torch.stack(out[::-1])


agent = Agent().cuda()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
for update in range(10):
    buffer = Buffer()
    for step in range(128):
        obs = torch.rand(256, 4, 84, 84, device="cuda")
        action, logprob, _, value = agent.act(obs)
        reward = torch.rand(256, device="cuda")
        buffer.add(obs.byte().cpu(), action, logprob, value, reward)
    targets = returns(buffer.rewards, buffer.values[-1].detach())
    for t in torch.randperm(128).tolist():
        _, logprob, entropy, value = agent.act(buffer.obs[t].cuda().float(), buffer.actions[t])
        ratio = (logprob - buffer.logprobs[t].detach()).exp()
        advantage = targets[t] - buffer.values[t].detach()
        loss = (
            -(ratio.clamp(0.8, 1.2) * advantage).mean()
            + 0.5 * F.mse_loss(value, targets[t])
            - 0.01 * entropy.mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
