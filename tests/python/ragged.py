"""A training on sequences of uneven length, as source for a virtual card."""

from __future__ import annotations

# Sequences whose attention is written out, so that a sample's need grows with the square of its length; the
# longest come last.
RAGGED = """
import memfit
from torch import nn
from torch.nn import functional

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        q, k, v = (each.unflatten(-1, (8, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)

class Model(nn.Module):
    def __init__(self, vocabulary=8000, width=512, depth=6):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def loss(model, tokens):
    logits = model(tokens)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

def begin(**settings):
    torch.manual_seed(0)
    model = Model().cuda()
    return model, memfit.Step(model, torch.optim.AdamW(model.parameters(), foreach=False), loss, **settings)

def ooms():
    return torch.cuda.memory_stats()["num_ooms"]
"""
