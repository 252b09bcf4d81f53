"""Supervised fine-tuning of a GPT with 12 layers on packed sequences of 1024 tokens, eight at a time.

cause: too-big
line: x = x + self.attn(|return x + self.mlp(|x = block(x)|self.proj(|self.act(
line: F.scaled_dot_product_attention(|model(tokens
remedy: checkpointing|micro-batch|smaller-batch|autocast-fp16|activation-offload|shorter-sequences|pure-bf16
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 8192
    context: int = 1024
    dim: int = 768
    heads: int = 12
    layers: int = 12
    batch: int = 8
    lr: float = 2e-5


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg.dim, 4 * cfg.dim)
        self.act = nn.GELU(approximate="tanh")
        self.out = nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        return self.out(self.act(self.fc(x)))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attn, self.mlp = Attention(cfg), MLP(cfg)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.context, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tok.weight.T


def packed(cfg):
    while True:
        tokens = torch.randint(cfg.vocab, (cfg.batch, cfg.context + 1))
        prompt = torch.arange(cfg.context) < cfg.context // 4
        yield tokens[:, :-1], tokens[:, 1:].masked_fill(prompt, -100)


def train(cfg, steps=30):
    with torch.device("cuda"):
        model = GPT(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step, (tokens, targets) in zip(range(steps), packed(cfg), strict=False):
        logits = model(tokens.cuda())
        loss = F.cross_entropy(logits.flatten(0, 1), targets.cuda().flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


train(Config())
