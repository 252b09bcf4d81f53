"""A selective state-space layer keeps the state of every time step until the backward pass.

cause: too-big
line: h = decay[:, t] * h|h = |states.append|decay = |drive =
remedy: checkpointing|micro-batch|smaller-batch|activation-offload|shorter-sequences|autocast-bf16
remedy: activation-budget
false: release-graph|keep-on-cpu|no-grad|drop-variables|preallocate
"""

import torch
import torch.nn.functional as F
from torch import nn


class SelectiveScan(nn.Module):
    def __init__(self, width, state=16):
        super().__init__()
        self.a = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))
        self.bc = nn.Linear(width, 2 * state)
        self.dt = nn.Linear(width, width)
        self.d = nn.Parameter(torch.ones(width))
        self.state = state

    def forward(self, x):
        b, t, w = x.shape
        dt = F.softplus(self.dt(x))
        into, out = self.bc(x).chunk(2, dim=-1)
        decay = torch.exp(-dt[..., None] * self.a.exp())
        drive = dt[..., None] * into[:, :, None] * x[..., None]
        h = torch.zeros(b, w, self.state, device=x.device)
        ys = []
        for i in range(t):
            h = decay[:, i] * h + drive[:, i]
            ys.append((h * out[:, i, None]).sum(-1))
        return torch.stack(ys, dim=1) + x * self.d


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.mix = SelectiveScan(width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        value, gate = self.expand(self.norm(x)).chunk(2, dim=-1)
        return x + self.out(self.mix(F.silu(value)) * F.silu(gate))


class Sequence(nn.Module):
    def __init__(self, width=256, depth=6, tokens=256):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


model = Sequence().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(5):
    tokens = torch.randint(0, 256, (14, 513), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
