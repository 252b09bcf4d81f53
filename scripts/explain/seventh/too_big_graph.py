"""A graph network over a whole graph at once: messages along every edge are kept in every layer.

cause: too-big
line: messages = |self.lin|index_add|layer(|model(
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|activation-budget
"""

import torch
from torch import nn


class Conv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes, source, target):
        messages = torch.relu(self.lin(torch.cat([nodes[source], nodes[target]], dim=1)))
        gathered = torch.zeros_like(nodes).index_add_(0, target, messages)
        return self.norm(nodes + gathered)


class Net(nn.Module):
    def __init__(self, width=128, layers=8):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.layers = nn.ModuleList([Conv(width) for _ in range(layers)])
        self.out = nn.Linear(width, 40)

    def forward(self, x, source, target):
        nodes = self.embed(x)
        for layer in self.layers:
            nodes = layer(nodes, source, target)
        return self.out(nodes)


nodes, edges = 20_000, 280_000
x = torch.randn(nodes, 64, device="cuda")
source = torch.randint(0, nodes, (edges,), device="cuda")
target = torch.randint(0, nodes, (edges,), device="cuda")
y = torch.randint(0, 40, (nodes,), device="cuda")
model = Net().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for epoch in range(10):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x, source, target), y)
    loss.backward()
    opt.step()
