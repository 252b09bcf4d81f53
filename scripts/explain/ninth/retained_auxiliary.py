"""During warm-up the reconstruction loss is only recorded, so that nothing frees its graph.

cause: retained-graph
line: history.append({|aux = F.mse_loss(|decoder(|reconstruction =
remedy: release-graph|no-grad
"""

import torch
from torch import nn
from torch.nn import functional as F

WARMUP = 5


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.SiLU())


def deconv(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.SiLU())


encoder = nn.Sequential(conv(3, 32), conv(32, 64), conv(64, 128)).cuda()
decoder = nn.Sequential(deconv(128, 64), deconv(64, 32), nn.ConvTranspose2d(32, 3, 4, 2, 1)).cuda()
head = nn.Linear(128, 10).cuda()
params = [*encoder.parameters(), *decoder.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(params, lr=1e-3)

history = []
for epoch in range(20):
    for _ in range(60):
        x = torch.rand(64, 3, 128, 128, device="cuda")
        y = torch.randint(10, (64,), device="cuda")
        z = encoder(x)
        loss = F.cross_entropy(head(z.mean((2, 3))), y)
        aux = F.mse_loss(decoder(z), x)
        total = loss if epoch < WARMUP else loss + 0.1 * aux
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        history.append({"epoch": epoch, "loss": loss.item(), "aux": aux})
    recent = torch.stack([h["aux"] for h in history[-60:]]).mean()
    print(epoch, loss.item(), recent.item())
