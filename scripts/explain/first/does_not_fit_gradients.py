"""The weights fit; weights and gradients together do not, whatever the batch.

cause: does-not-fit
line:
"""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(expert(x) for expert in self.experts)


model = Experts(24, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(8, 4096, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
