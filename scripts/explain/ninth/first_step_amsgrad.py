"""A decision transformer is updated first after four micro-batches, and amsgrad has three states.

cause: first-step-surprise
line: self.optimizer.step()
remedy: adafactor|8-bit-optimizer|bf16-optimizer-state|host-optimizer-state|optimizer-in-backward
remedy: pure-bf16|lora|shard|low-rank-gradients
"""

import torch
from torch import nn
from torch.nn import functional as F


class DecisionTransformer(nn.Module):
    def __init__(self, obs=64, actions=16, dim=1152, layers=10):
        super().__init__()
        self.embed_return, self.embed_obs = nn.Linear(1, dim), nn.Linear(obs, dim)
        self.embed_action = nn.Embedding(actions, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 18, 4 * dim, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.policy = nn.Linear(dim, actions)

    def forward(self, returns, obs, actions):
        tokens = torch.stack(
            [self.embed_return(returns), self.embed_obs(obs), self.embed_action(actions)], dim=2
        ).flatten(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.policy(tokens[:, 1::3])


class Agent:
    accumulate = 4

    def __init__(self):
        with torch.device("cuda"):
            self.net = DecisionTransformer()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, amsgrad=True)
        self.micro = 0

    def learn(self, returns, obs, actions):
        logits = self.net(returns, obs, actions)
        loss = F.cross_entropy(logits.flatten(0, 1), actions.flatten()) / self.accumulate
        loss.backward()
        self.micro += 1
        if self.micro % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


agent = Agent()
for update in range(40):
    returns = torch.randn(4, 20, 1, device="cuda")
    obs = torch.randn(4, 20, 64, device="cuda")
    actions = torch.randint(16, (4, 20), device="cuda")
    loss = agent.learn(returns, obs, actions)
print(loss.item())
