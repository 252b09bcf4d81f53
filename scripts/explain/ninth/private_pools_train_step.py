"""The captured training step keeps its activations' pool, and no memory is left for an eager evaluation.

cause: private-pools
line: with torch.cuda.graph(graph):|model(held_out)|x = torch.relu(
remedy: share-pool|smaller-batch|by-parts|pool-on-oom|drop-variables
"""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, width=2048, depth=8):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


model = Forecaster().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
static_x = torch.randn(16_384, 64, device="cuda")
static_y = torch.randn(16_384, 1, device="cuda")


def train_step():
    loss = nn.functional.mse_loss(model(static_x), static_y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        train_step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = train_step()

held_out = torch.randn(72_000, 64, device="cuda")
for epoch in range(3):
    for _ in range(50):
        static_x.normal_()
        static_y.normal_()
        graph.replay()
    with torch.no_grad():
        print(epoch, static_loss.item(), model(held_out).mean().item())
