"""Sharpness-aware minimisation runs two passes a step, and the first pass's outputs live through the second.

cause: two-batches-alive|too-big
line: logits, features = model(|features = |model(images)
remedy: drop-variables|checkpointing|micro-batch|smaller-batch|activation-offload|autocast-bf16
remedy: activation-budget
false: no-grad|release-graph|keep-on-cpu|fused-optimizer
"""

import torch
import torch.nn.functional as F
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["e_w"] = p.grad * (group["rho"] / (norm + 1e-12))
                p.add_(self.state[p]["e_w"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["e_w"])
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


class Net(nn.Module):
    def __init__(self, c=48, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(5))
        self.fc = nn.Linear(c, classes)

    def forward(self, x):
        features = [self.stem(x)]
        for block in self.blocks:
            features.append(F.gelu(block(features[-1])))
        return self.fc(features[-1].mean((2, 3))), features


model = Net().cuda()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for step in range(20):
    images, labels = torch.randn(64, 3, 112, 112, device="cuda"), torch.randint(0, 100, (64,), device="cuda")
    logits, features = model(images)
    loss = F.cross_entropy(logits, labels) + 1e-4 * features[-1].square().mean()
    loss.backward()
    optimizer.first_step()
    logits2, features2 = model(images)
    (F.cross_entropy(logits2, labels) + 1e-4 * features2[-1].square().mean()).backward()
    optimizer.second_step()
    print(step, loss.item())
