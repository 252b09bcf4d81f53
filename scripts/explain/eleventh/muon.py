"""An optimizer of the project's own keeps momentum and makes several full copies while it orthogonalises.

cause: first-step-surprise
line: optimizer.step()|newton_schulz|zeros_like
remedy: host-optimizer-state|8-bit-optimizer|bf16-optimizer-state|optimizer-in-backward|shard|adafactor
remedy: low-rank-gradients|by-parts
false: foreach-off|fused-optimizer|no-grad|checkpointing|activation-offload|release-graph
"""

import torch
import torch.nn.functional as F
from torch import nn


def newton_schulz(g, steps=5):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            grads = [p.grad for p in group["params"]]
            for p in group["params"]:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                    self.state[p]["second"] = torch.zeros_like(p)
            for p, g in zip(group["params"], grads):
                m = self.state[p]["momentum"].mul_(group["momentum"]).add_(g)
                update = newton_schulz(m) if m.ndim == 2 else m
                p.add_(update, alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self, width=2560, depth=34):
        super().__init__()
        self.inp = nn.Linear(256, width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.body:
            x = x + F.relu(layer(x))
        return self.out(x)


model = Net().cuda()
optimizer = Muon(model.parameters())
for step in range(20):
    x, y = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
