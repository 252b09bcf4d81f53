"""A graph is captured for each batch size that a server may get, each in a pool of its own.

cause: private-pools
line: torch.cuda.graph(|model(|self.model(
remedy: share-pool
"""

import torch
from torch import nn


class Captured:
    def __init__(self, model, rows):
        self.inputs = torch.zeros(rows, 1024, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = model(self.inputs)

    def __call__(self, rows):
        self.inputs[: rows.shape[0]].copy_(rows)
        self.graph.replay()
        return self.outputs[: rows.shape[0]]


model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.ReLU()))).cuda().eval()
with torch.no_grad():
    model(torch.zeros(8, 1024, device="cuda"))
    sizes = [96_000, 80_000, 64_000, 48_000, 32_000, 16_000]
    graphs = {rows: Captured(model, rows) for rows in sizes}
    print(graphs[16_000](torch.ones(9, 1024, device="cuda")).shape)
