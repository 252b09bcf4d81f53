"""A class that takes care of the device gives the process 60 % of the GPU, for a desktop that runs elsewhere.

cause: setting-that-hurts
line: set_per_process_memory_fraction
remedy: drop-setting
false: no-grad|fused-optimizer|release-graph|keep-on-cpu|drop-variables
"""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Runtime:
    def __init__(self, seed=0, share=0.6):
        random.seed(seed)
        torch.manual_seed(seed)
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.cuda.set_per_process_memory_fraction(share, self.device)


class GraphNet(nn.Module):
    def __init__(self, features=128, hidden=256, layers=5, classes=40):
        super().__init__()
        self.inp = nn.Linear(features, hidden)
        self.layers = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, source, target):
        x = self.inp(x)
        for layer in self.layers:
            messages = torch.zeros_like(x).index_add_(0, target, x[source])
            x = F.relu(layer(torch.cat([x, messages], dim=-1)))
        return self.out(x)


runtime = Runtime()
nodes, edges = 100_000, 300_000
features = torch.randn(nodes, 128, device=runtime.device)
source = torch.randint(0, nodes, (edges,), device=runtime.device)
target = torch.randint(0, nodes, (edges,), device=runtime.device)
labels = torch.randint(0, 40, (nodes,), device=runtime.device)
model = GraphNet().to(runtime.device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(30):
    loss = F.cross_entropy(model(features, source, target), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
