"""An optimizer of one's own makes preconditioners for each weight in its first step.

cause: first-step-surprise
line: torch.eye|state["left"]|optimizer.step()|self.precondition
remedy: host-optimizer-state|8-bit-optimizer|bf16-optimizer-state|adafactor|low-rank-gradients|shard
remedy: optimizer-in-backward
false: foreach-off|fused-optimizer|no-grad|checkpointing|activation-offload|release-graph|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, momentum=0.9, eps=1e-4, every=20):
        super().__init__(params, {"lr": lr, "momentum": momentum, "eps": eps, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, g = self.state[p], p.grad
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(p)
                    if g.dim() == 2:
                        m, n = g.shape
                        state["left"] = group["eps"] * torch.eye(m, device=p.device)
                        state["right"] = group["eps"] * torch.eye(n, device=p.device)
                        state["left_root"] = torch.eye(m, device=p.device)
                        state["right_root"] = torch.eye(n, device=p.device)
                if g.dim() == 2:
                    state["left"].add_(g @ g.t())
                    state["right"].add_(g.t() @ g)
                    g = state["left_root"] @ g @ state["right_root"]
                state["step"] += 1
                state["momentum"].mul_(group["momentum"]).add_(g)
                p.add_(state["momentum"], alpha=-group["lr"])


class Mixer(nn.Module):
    def __init__(self, dim=1024, layers=8, inputs=784, classes=10):
        super().__init__()
        self.inp = nn.Linear(inputs, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


model = Mixer().cuda()
optimizer = Shampoo(model.parameters())
for step in range(100):
    x, y = torch.randn(128, 784, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
