"""A model, its moving average, its gradients and Adam's first moments: the first update is the last straw.

cause: first-step-surprise|does-not-fit
line: optimizer.step()
remedy: adafactor|8-bit-optimizer|bf16-optimizer-state|host-optimizer-state|optimizer-in-backward
remedy: pure-bf16|lora|shard|keep-on-cpu|low-rank-gradients
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class DiT(nn.Module):
    def __init__(self, dim=1024, depth=12):
        super().__init__()
        self.patch = nn.Linear(64, dim)
        self.time = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 16, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(dim, 64)

    def forward(self, x, t):
        h = self.patch(x) + self.time(t[:, None])[:, None]
        for block in self.blocks:
            h = block(h)
        return self.out(h)


with torch.device("cuda"):
    model = DiT()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(20):
    x0 = torch.randn(4, 64, 64, device="cuda")
    noise, t = torch.randn_like(x0), torch.rand(4, device="cuda")
    xt = (1 - t[:, None, None]) * x0 + t[:, None, None] * noise
    loss = F.mse_loss(model(xt, t), noise - x0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    print(step, loss.item())
