"""Fifteen rounds of message passing over a mesh with 100,000 edges: the messages of all rounds do not fit.

cause: too-big
line: self.edge_mlp(|self.node_mlp(|torch.cat([|nodes, edges = |self.net(|simulator(
remedy: checkpointing|autocast-fp16|activation-offload|micro-batch|smaller-batch
"""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, inputs, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)
        )

    def forward(self, x):
        return self.net(x)


class Round(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.edge_mlp = MLP(3 * width)
        self.node_mlp = MLP(2 * width)

    def forward(self, nodes, edges, src, dst):
        messages = self.edge_mlp(torch.cat([nodes[src], nodes[dst], edges], dim=-1))
        received = torch.zeros_like(nodes).index_add(0, dst, messages)
        return nodes + self.node_mlp(torch.cat([nodes, received], dim=-1)), edges + messages


class Simulator(nn.Module):
    def __init__(self, rounds=15):
        super().__init__()
        self.node_encoder, self.edge_encoder = MLP(11), MLP(7)
        self.rounds = nn.ModuleList(Round() for _ in range(rounds))
        self.decoder = nn.Linear(128, 3)

    def forward(self, nodes, edges, src, dst):
        nodes, edges = self.node_encoder(nodes), self.edge_encoder(edges)
        for r in self.rounds:
            nodes, edges = r(nodes, edges, src, dst)
        return self.decoder(nodes)


def trajectory(n_nodes=17_000, n_edges=100_000, device="cuda"):
    return (
        torch.randn(n_nodes, 11, device=device),
        torch.randn(n_edges, 7, device=device),
        torch.randint(n_nodes, (n_edges,), device=device),
        torch.randint(n_nodes, (n_edges,), device=device),
    )


if __name__ == "__main__":
    simulator = Simulator().cuda()
    optim = torch.optim.Adam(simulator.parameters(), lr=1e-4)
    for step in range(1000):
        graph = trajectory()
        acceleration = torch.randn(17_000, 3, device="cuda")
        loss = ((simulator(*graph) - acceleration) ** 2).sum(-1).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
