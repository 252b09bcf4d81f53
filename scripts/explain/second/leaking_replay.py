"""Reinforcement learning: transitions pile up on the card, in a list that nothing bounds.

cause: leaking
line: torch.rand|observe|.clone()|state
"""

import torch
from torch import nn


class Memory:
    def __init__(self):
        self.transitions = []

    def push(self, state, action, reward, following):
        self.transitions.append((state, action, reward, following))

    def sample(self, count):
        chosen = torch.randint(0, len(self.transitions), (count,)).tolist()
        return [torch.cat(parts) for parts in zip(*(self.transitions[index] for index in chosen))]


def observe():
    return torch.rand(8, 4, 168, 168, device="cuda")


policy = nn.Sequential(nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6)).cuda()
policy(torch.zeros(1, 4, 168, 168, device="cuda"))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
memory, state = Memory(), observe()
for step in range(900):
    with torch.no_grad():
        action = policy(state).argmax(1, keepdim=True)
    following = observe()
    memory.push(state, action, torch.zeros(8, device="cuda"), following)
    state = following
    if step % 2:
        states, actions, rewards, _ = memory.sample(2)
        value = policy(states).gather(1, actions).squeeze(1)
        loss = (value - rewards).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
