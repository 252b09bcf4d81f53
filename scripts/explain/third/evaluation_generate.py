"""After some training, a text is continued token by token with a cache of keys and values, and with
gradients.

cause: evaluation-with-gradients
line: model(|self.blocks|block(
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, cache=None):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(x), (k, v)


class Model(nn.Module):
    def __init__(self, words=4000, width=256, depth=4):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, tokens, caches=None):
        x, new = self.table(tokens), []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, caches[index] if caches else None)
            new.append(cache)
        return self.head(x), new


def sample(model, prompt, length):
    logits, caches = model(prompt)
    for _ in range(length):
        token = logits[:, -1].argmax(-1, keepdim=True)
        prompt = torch.cat([prompt, token], 1)
        logits, caches = model(token, caches)
    return prompt


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for _ in range(4):
    tokens = torch.randint(0, 4000, (16, 128), device="cuda")
    logits, _ = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sample(model, torch.randint(0, 4000, (16, 64), device="cuda"), 300).shape)
