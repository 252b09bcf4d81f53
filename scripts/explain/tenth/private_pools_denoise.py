"""A sampler captures one graph for each batch size, each in a pool of its own.

cause: private-pools
line: torch.cuda.graph(
remedy: share-pool
false: checkpointing|micro-batch|no-grad|fused-optimizer|activation-offload|release-graph|keep-on-cpu
false: drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, c=128, depth=4):
        super().__init__()
        self.enter = nn.Conv2d(4, c, 3, padding=1)
        self.time = nn.Linear(1, c)
        self.blocks = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(depth))
        self.leave = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x, t):
        x = self.enter(x) + self.time(t)[..., None, None]
        for block in self.blocks:
            x = x + block(F.silu(x))
        return self.leave(x)


class GraphedSampler:
    def __init__(self, model, sizes, side=64):
        self.model, self.graphs = model, {}
        for size in sizes:
            self.graphs[size] = self.capture(size, side)

    @torch.no_grad()
    def capture(self, size, side):
        x = torch.randn(size, 4, side, side, device="cuda")
        t = torch.ones(size, 1, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.model(x, t)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.model(x, t)
        return graph, x, t, out

    def __call__(self, noise, steps=20):
        graph, x, t, out = self.graphs[len(noise)]
        x.copy_(noise)
        for step in reversed(range(steps)):
            t.fill_(step / steps)
            graph.replay()
            x.sub_(out, alpha=1 / steps)
        return x.clone()


sampler = GraphedSampler(Denoiser().cuda().eval(), sizes=[8, 16, 32, 48, 64, 80, 96, 112, 128])
for size in (8, 64, 128):
    print(sampler(torch.randn(size, 4, 64, 64, device="cuda")).std().item())
