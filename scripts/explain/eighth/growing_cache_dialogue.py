"""A chat with sixteen users: keys and values of all turns stay, as nothing of the conversation is dropped.

cause: growing-cache
line: torch.cat([past|cache[i] = layer(
remedy: kv-cache-window|kv-cache-8-bit
"""

import torch
import torch.nn.functional as F
from torch import nn


class DecoderLayer(nn.Module):
    def __init__(self, dim=1024, heads=16):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, past):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ffn(self.norm2(x)), (k, v)


class ChatModel(nn.Module):
    def __init__(self, vocab=32_000, dim=1024, layers=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([DecoderLayer(dim) for _ in range(layers)])
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, cache):
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            x, cache[i] = layer(x, cache.get(i))
        return self.lm_head(x[:, -1])


@torch.no_grad()
def main():
    with torch.device("cuda"):
        model = ChatModel().eval()
    cache = {}
    for turn in range(40):
        question = torch.randint(32_000, (16, 48), device="cuda")
        token = model(question, cache).argmax(-1, keepdim=True)
        for _ in range(8):
            token = model(token, cache).argmax(-1, keepdim=True)
        print(f"turn {turn}: {cache[0][0].shape[2]} tokens remembered")


main()
