"""`zero_grad` after the forward: the previous step's gradients are still allocated during this one.

cause: two-batches-alive
line:
"""

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(49_152, 2048)
        self.deep = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)[:, None].expand(-1, 24, -1)
        for layer in self.deep:
            x = torch.tanh(layer(x)) + x
        return x


def main() -> None:
    model = Wide().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for _ in range(4):
        data = torch.randn(560, 49_152, device="cuda")
        loss = model(data).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss, data


main()
