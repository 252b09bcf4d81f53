"""A neural ODE of fluid particles is solved by 160 Euler steps, and the gradient goes through all of them.

cause: too-big
line: self.field|state + dt|field(|model(
remedy: checkpointing|activation-offload|micro-batch|activation-budget
"""

import torch
from torch import nn


class NeuralODE(nn.Module):
    def __init__(self, state=6, width=256):
        super().__init__()
        self.field = nn.Sequential(
            nn.Linear(state + 1, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, state),
        )

    def forward(self, state, steps, dt=0.01):
        for i in range(steps):
            time = torch.full_like(state[:, :1], i * dt)
            state = state + dt * self.field(torch.cat([state, time], 1))
        return state


device = "cuda" if torch.cuda.is_available() else "cpu"
model = NeuralODE().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(5):
    for batch in range(20):
        start = torch.randn(16_000, 6, device=device)
        target = torch.randn(16_000, 6, device=device)
        end = model(start, steps=160)
        loss = (end - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(epoch, loss.item())
