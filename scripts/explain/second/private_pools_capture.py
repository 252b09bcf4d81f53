"""Whole training steps are captured for two shapes, each graph with its own pool.

cause: private-pools
line: torch.cuda.graph(|model(
"""

import torch
from torch import nn

model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(1280, 1280), nn.Tanh()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def capture(rows):
    static = torch.randn(rows, 1280, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(static).square().mean().backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph, static


graphs = [capture(rows) for rows in (6000, 7000, 8000, 9000)]
for graph, _ in graphs:
    graph.replay()
