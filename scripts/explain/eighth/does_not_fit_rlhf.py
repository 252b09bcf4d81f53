"""Preparing for PPO from human feedback: policy, reference, reward and value models, all in float32.

cause: does-not-fit
line: copy.deepcopy(|GPT(out=
remedy: pure-bf16|lora|quantized-base|quantized-weights|shard
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, out, d=1024, layers=13, vocab=50257):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(1024, d)
        self.blocks = nn.Sequential(*[Block(d, 16) for _ in range(layers)])
        self.head = nn.Linear(d, out, bias=False) if out else None

    def forward(self, ids):
        x = self.blocks(self.wte(ids) + self.wpe.weight[: ids.shape[1]])
        return x @ self.wte.weight.T if self.head is None else self.head(x[:, -1])


device = torch.device("cuda")
with device:
    policy = GPT(out=0)
    reward_model = GPT(out=1)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
value_model = copy.deepcopy(reward_model)
reward_model.requires_grad_(False)
optimizer = torch.optim.AdamW([*policy.parameters(), *value_model.parameters()], lr=1e-6)

for _ in range(4):
    ids = torch.randint(50257, (2, 64), device=device)
    logp = policy(ids).log_softmax(-1)
    with torch.no_grad():
        ref = reference(ids).log_softmax(-1)
        reward = reward_model(ids) - 0.1 * (logp - ref).mean()
    value = value_model(ids)
    loss = -(logp.mean() * (reward - value.detach())).mean() + F.mse_loss(value, reward)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
