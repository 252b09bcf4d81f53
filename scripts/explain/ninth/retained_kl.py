"""PPO watches a running mean of the KL divergence, and the mean keeps the graph of each update.

cause: retained-graph
line: self.kl = |self.kl_divergence(|kl =
remedy: release-graph|no-grad
"""

import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence


class ActorCritic(nn.Module):
    def __init__(self, obs=512, actions=18, width=1024):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(obs, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
        )
        self.pi, self.v = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class PPO:
    clip, decay = 0.2, 0.95

    def __init__(self):
        self.net = ActorCritic().cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2.5e-4)
        self.kl = 0.0

    def update(self, obs, actions, old_logits, advantage, returns):
        old = Categorical(logits=old_logits)
        pi, value = self.net(obs)
        ratio = (pi.log_prob(actions) - old.log_prob(actions)).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean() + (value - returns).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        pi, _ = self.net(obs)
        kl = kl_divergence(old, pi).mean()
        self.kl = self.decay * self.kl + (1 - self.decay) * kl
        return loss.item()


ppo = PPO()
for iteration in range(50):
    for epoch in range(4):
        n = 8192
        ppo.update(
            torch.randn(n, 512, device="cuda"),
            torch.randint(18, (n,), device="cuda"),
            torch.randn(n, 18, device="cuda"),
            torch.randn(n, device="cuda"),
            torch.randn(n, device="cuda"),
        )
    print(iteration, float(ppo.kl))
