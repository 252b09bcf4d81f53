"""A server captures a graph for each length, each with a pool of its own, and then has to train a little.

cause: private-pools
line: captured|network(|torch.cuda.graph|model(
"""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 4096), nn.Linear(4096, 512)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


network = Network().cuda().eval()
graphs = {}
for length in (256, 512, 1024, 1536, 2048):
    x = torch.zeros(16, length, 512, device="cuda")
    with torch.no_grad():
        network(x[:, :8])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = network(x)
    graphs[length] = graph, x, out.sum()
    del out
network.train()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(24, 2048, 512, device="cuda")
    loss = network(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
