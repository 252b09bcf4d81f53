"""A chat server keeps the key-value cache of every session, and ends none.

cause: leaking|growing-cache
line: sessions[|past.append|torch.cat|self.kv(
remedy: keep-on-cpu|kv-cache-8-bit|kv-cache-window|preallocate
false: release-graph|checkpointing|micro-batch|fused-optimizer|no-grad|activation-offload|drop-variables
"""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, past):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x), (k, v)


class Chat(nn.Module):
    def __init__(self, vocab=32_000, dim=768, layers=6, heads=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))

    def forward(self, ids, past=None):
        x, present = self.embed(ids), []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, past[i] if past else None)
            present.append(kv)
        return x[:, -1] @ self.embed.weight.t(), present


class Server:
    def __init__(self, model):
        self.model, self.sessions = model, {}

    @torch.inference_mode()
    def answer(self, session, prompt, new_tokens=4):
        logits, past = self.model(prompt, self.sessions.get(session))
        for _ in range(new_tokens):
            logits, past = self.model(logits.argmax(-1, keepdim=True), past)
        self.sessions[session] = past
        return logits.argmax(-1)


server = Server(Chat().cuda().eval())
for request in itertools.count():
    server.answer(f"user-{request}", torch.randint(0, 32_000, (1, 900), device="cuda"))
    if request == 200:
        break
