"""Greedy decoding with cached keys and values, and with an autograd graph of every token so far.

cause: evaluation-with-gradients
line: logits, cache = |self.o(|torch.cat([past|block(|self.mlp(|self.qkv(
remedy: no-grad
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim=768, heads=12):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, past):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class LM(nn.Module):
    def __init__(self, vocab=16_384, dim=768, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))

    def forward(self, ids, cache=None):
        x, new = self.embed(ids), []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, cache[i] if cache else None)
            new.append(kv)
        return x[:, -1] @ self.embed.weight.T, new


def generate(model, prompt, n):
    model.eval()
    ids, cache, step = prompt, None, prompt
    for _ in range(n):
        logits, cache = model(step, cache)
        step = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], dim=1)
    return ids


with torch.device("cuda"):
    lm = LM()
prompts = torch.randint(16_384, (16, 64), device="cuda")
text = generate(lm, prompts, 256)
print(text.shape)
