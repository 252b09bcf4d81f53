"""A mixture of 96 experts, moved to the card part by part.

cause: does-not-fit
line: .to(
"""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=1024, count=96):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return sum(
            weights[:, [k]] * torch.stack([self.experts[e](t) for e, t in zip(chosen[:, k].tolist(), x)])
            for k in range(2)
        )


def place(model, device):
    for part in model.children():
        part.to(device)
    return model


with torch.device("meta"):
    experts = Experts()
experts = place(experts.to_empty(device="cpu"), torch.device("cuda"))
print(experts(torch.randn(4, 1024, device="cuda")).shape)
