"""The snapshot is written where main catches the error, after the training function has returned its memory.

cause: too-big
line: self.mlp(|self.attn(|block(x)
remedy: checkpointing|micro-batch|smaller-batch|activation-offload|autocast-bf16|activation-budget
snapshot: oom_snapshot.pickle
false: no-grad|release-graph|keep-on-cpu|drop-variables
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, dim=384, depth=12, heads=6, patch=16, side=224, classes=1000):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, (side // patch) ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def train(steps):
    model = ViT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x, y = torch.randn(96, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (96,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    torch.cuda.memory._record_memory_history()
    try:
        train(100)
    except RuntimeError as error:
        print(error, file=sys.stderr)
    torch.cuda.memory._dump_snapshot("oom_snapshot.pickle")


main()
