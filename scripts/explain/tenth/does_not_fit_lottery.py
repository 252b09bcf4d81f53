"""Weights, first weights, masks in float32 and gradients of a language model, all at once on the GPU.

cause: does-not-fit
line: loss.backward()|initial =|masks =
remedy: shard|keep-on-cpu|pure-bf16|host-optimizer-state|lora|optimizer-in-backward
false: checkpointing|micro-batch|smaller-batch|activation-offload|expandable-segments|fused-optimizer
false: foreach-off
"""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, LAYERS = 32_000, 1024, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 16, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model().cuda()
initial = {name: p.detach().clone() for name, p in model.named_parameters()}
masks = {name: torch.ones_like(p) for name, p in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for round_ in range(5):
    for step in range(100):
        ids = torch.randint(0, VOCABULARY, (1, 129), device="cuda")
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            p.grad.mul_(masks[name])
        optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            threshold = p.abs().flatten().float().kthvalue(p.numel() // 5).values
            masks[name] = (p.abs() > threshold).float()
            p.copy_(initial[name] * masks[name])
