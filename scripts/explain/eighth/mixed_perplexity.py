"""Perplexity over a long text by a sliding window; each window's loss goes to a list with its graph.

cause: evaluation-with-gradients|retained-graph
line: nlls.append(|model(window|perplexity(
remedy: no-grad|release-graph
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d=256, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        )
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, vocab=16_000, d=256, layers=6):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab, d), nn.Embedding(512, d)
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def perplexity(model, text, length=512, stride=256):
    nlls, previous = [], 0
    for begin in range(0, text.shape[1] - length, stride):
        end = begin + length
        fresh = end - previous
        window = text[:, begin:end].cuda()
        target = window.clone()
        target[:, :-fresh] = -100
        logits = model(window)
        nlls.append(F.cross_entropy(logits[:, :-1].transpose(1, 2), target[:, 1:]) * fresh)
        previous = end
    return torch.exp(torch.stack(nlls).sum() / previous)


model = LM().cuda().eval()
book = torch.randint(0, 16_000, (1, 60_000))
print(f"perplexity {perplexity(model, book).item():.2f}")
