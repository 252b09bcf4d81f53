"""Keys and values of 48 chats are concatenated for every new token, old and new side by side.

cause: growing-cache
line: torch.cat([self.k, k]|torch.cat([self.v, v]|cache.append(|layer(x, cache)
remedy: kv-cache-8-bit|kv-cache-window|smaller-batch|pure-bf16
"""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class LayerCache:
    def __init__(self):
        self.k = self.v = None

    def append(self, k, v):
        if self.k is None:
            self.k, self.v = k, v
        else:
            self.k = torch.cat([self.k, k], dim=-2)
            self.v = torch.cat([self.v, v], dim=-2)
        return self.k, self.v


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(dim)
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, cache):
        b, n, d = x.shape
        q, k, v = self.wqkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k, v = cache.append(k, v)
        x = x + self.wo(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(torch.relu(self.up(x)).square())


class Server:
    def __init__(self, dim=1024, depth=8, vocab=8000):
        with torch.device("cuda"):
            self.embed = nn.Embedding(vocab, dim)
            self.layers = nn.ModuleList([Layer(dim, 16) for _ in range(depth)])

    @torch.inference_mode()
    def reply(self, prompt, max_new_tokens):
        caches = [LayerCache() for _ in self.layers]
        tokens, out = prompt, []
        for _ in range(max_new_tokens):
            x = self.embed(tokens)
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer(x, cache)
            tokens = (x[:, -1] @ self.embed.weight.T).argmax(-1)[:, None]
            out.append(tokens)
        return torch.cat(out, dim=1)


server = Server()
chats = torch.randint(8000, (48, 384), device="cuda")
print(server.reply(chats, max_new_tokens=480).shape)
