"""Dense outputs of a step are in their variables until the next step's replace them.

cause: two-batches-alive
line: flow = model(|model(pair)|self.body(
"""

import torch
from torch import nn


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 24, 1))

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        return self.body(pair)


model = Flow().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    pair = torch.randn(31, 6, 384, 384, device="cuda")
    flow = model(pair)
    coarse = nn.functional.avg_pool2d(flow, 2)
    warped = flow * 0.5 + flow.roll(1, dims=-1)
    loss = warped.abs().mean() + coarse.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
