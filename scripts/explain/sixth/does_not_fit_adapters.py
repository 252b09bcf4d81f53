"""Low-rank adapters on a language model whose own weights are loaded in full precision: they alone are more
than the card has.

cause: does-not-fit
line: .to("cuda")|.to(device
"""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, hidden):
        return self.base(hidden) + self.up(self.down(hidden))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = Adapted(nn.Linear(width, 4 * width))
        self.back = Adapted(nn.Linear(4 * width, width))

    def forward(self, hidden):
        return hidden + self.back(nn.functional.gelu(self.mix(self.norm(hidden))))


model = nn.Sequential(nn.Embedding(32_000, 2048), *(Block(2048) for _ in range(24)), nn.Linear(2048, 32_000))
model = model.to("cuda")
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=2e-4)
for _ in range(3):
    tokens = torch.randint(0, 32_000, (1, 256), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
