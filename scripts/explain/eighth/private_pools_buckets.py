"""A text encoder is captured once per bucket of lengths, and each graph keeps a pool of its own.

cause: private-pools
line: torch.cuda.graph(|capture(|CUDAGraph()
remedy: share-pool
"""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim=512, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Runner:
    def __init__(self, model, batch=64):
        self.model, self.batch, self.graphs = model, batch, {}

    def capture(self, length):
        tokens = torch.zeros(self.batch, length, dtype=torch.long, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(tokens)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.model(tokens)
        self.graphs[length] = graph, tokens, out

    def __call__(self, length, batch):
        if length not in self.graphs:
            self.capture(length)
        graph, tokens, out = self.graphs[length]
        tokens.copy_(batch)
        graph.replay()
        return out.mean(1)


model = nn.Sequential(nn.Embedding(30_000, 512), *[Layer() for _ in range(6)]).cuda().eval()
runner = Runner(model)
with torch.no_grad():
    for length in range(512, 31, -32):
        vectors = runner(length, torch.zeros(64, length, dtype=torch.long)).cpu()
        print(length, vectors.shape)
