"""L-BFGS keeps a hundred directions and as many differences, each as large as all weights together.

cause: first-step-surprise|leaking
line: optimizer.step(
remedy: host-optimizer-state|shard
false: foreach-off|fused-optimizer|no-grad|checkpointing|activation-offload|release-graph|keep-on-cpu
false: drop-variables|8-bit-optimizer
"""

import torch
from torch import nn


class PINN(nn.Module):
    """Solves the heat equation with a wide network."""

    def __init__(self, width=1024, depth=6):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def residual(model, x, t):
    u = model(x, t)
    ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
    return (ut - 0.1 * uxx).square().mean()


model = PINN().cuda()
x = torch.rand(512, 1, device="cuda", requires_grad=True)
t = torch.rand(512, 1, device="cuda", requires_grad=True)
x0 = torch.rand(256, 1, device="cuda")
optimizer = torch.optim.LBFGS(
    model.parameters(), lr=0.5, max_iter=1, history_size=100, tolerance_grad=-1.0, tolerance_change=-1.0
)


def closure():
    optimizer.zero_grad()
    loss = residual(model, x, t)
    loss = loss + (model(x0, torch.zeros_like(x0)) - torch.sin(torch.pi * x0)).square().mean()
    loss.backward()
    return loss


for iteration in range(200):
    loss = optimizer.step(closure)
    if iteration % 10 == 0:
        print(iteration, loss.item())
