"""A graph for each length, each with a pool of its own.

cause: private-pools
line: torch.cuda.graph(|model(
"""

import torch
from torch import nn

device = torch.device("cuda")
model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU()))).to(device)
graphs = {}
with torch.no_grad():
    for length in (24_000, 28_000, 32_000, 36_000, 40_000, 44_000, 48_000):
        static = torch.zeros(length, 1024, device=device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(static)
        graphs[length] = graph, static, out
for graph, _, _ in graphs.values():
    graph.replay()
