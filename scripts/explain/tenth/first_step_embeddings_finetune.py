"""A large classifier head is fine-tuned with AdamW in two groups; its states come with the first step.

cause: first-step-surprise
line: optimizer.step()
remedy: foreach-off|fused-optimizer|8-bit-optimizer|adafactor|host-optimizer-state|bf16-optimizer-state
remedy: optimizer-in-backward|low-rank-gradients|shard|lora
false: no-grad|checkpointing|activation-offload|release-graph|drop-variables|micro-batch|smaller-batch
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class FaceNet(nn.Module):
    """A small backbone, and a class for each of very many people."""

    def __init__(self, people=300_000, dim=512):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.PReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.PReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(64 * 49, dim),
        )
        self.weight = nn.Parameter(torch.randn(people, dim) * 0.01)

    def forward(self, images, labels, scale=64.0, margin=0.5):
        cosine = F.linear(F.normalize(self.backbone(images)), self.weight).clamp(-1 + 1e-6, 1 - 1e-6)
        target = cosine.gather(1, labels[:, None])
        moved = (target.acos() + margin).cos()
        logits = cosine.scatter(1, labels[:, None], moved) * scale
        return F.cross_entropy(logits, labels)


def warmup(step, total=1000):
    return min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / total))


device = "cuda"
model = FaceNet().to(device)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=1e-3
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
for step in range(50):
    images = torch.randn(16, 3, 112, 112, device=device)
    labels = torch.randint(0, 300_000, (16,), device=device)
    loss = model(images, labels)
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
