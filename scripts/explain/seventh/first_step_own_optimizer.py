"""An optimizer from a paper, written down as a class: its three states come into being in its first step.

cause: first-step-surprise
line: optimizer.step()|torch.zeros_like|state[
remedy: 8-bit-optimizer|optimizer-in-backward|bf16-optimizer-state
remedy: host-optimizer-state|pure-bf16|adafactor
"""

import torch
from torch import nn


class Adan(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.98, 0.92, 0.99), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            one, two, three = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                    state["n"] = torch.zeros_like(p)
                    state["before"] = p.grad.clone()
                change = p.grad - state["before"]
                state["m"].mul_(one).add_(p.grad, alpha=1 - one)
                state["v"].mul_(two).add_(change, alpha=1 - two)
                state["n"].mul_(three).addcmul_(p.grad, p.grad, value=1 - three)
                p.addcdiv_(
                    state["m"] + two * state["v"], state["n"].sqrt() + group["eps"], value=-group["lr"]
                )
                state["before"].copy_(p.grad)


model = nn.Sequential(*(layer for _ in range(7) for layer in (nn.Linear(4096, 4096), nn.SiLU()))).cuda()
optimizer = Adan(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(32, 4096, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
