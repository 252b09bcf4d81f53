"""A small mixture of experts trained by plain SGD: the weights fit, the weights and their gradients do not.

cause: does-not-fit
line: loss.backward()|Expert(|MoE(|Linear(dim, hidden)
remedy: optimizer-in-backward|pure-bf16|lora|quantized-base|shard
"""

import torch
import torch.nn as nn


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


class MoE(nn.Module):
    """Soft routing: every expert sees each token, weighted by the gate."""

    def __init__(self, dim=768, hidden=3072, experts=16):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])

    def forward(self, x):
        h = self.norm(x)
        gate = self.gate(h).softmax(-1)
        out = x
        for i, expert in enumerate(self.experts):
            out = out + gate[..., i : i + 1] * expert(h)
        return out


torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(nn.Embedding(8000, 768), *[MoE() for _ in range(6)], nn.Linear(768, 8000))
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss()

for step in range(10):
    tokens = torch.randint(0, 8000, (2, 33))
    logits = model(tokens[:, :-1])
    loss = criterion(logits.reshape(-1, 8000), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
