"""A metric object collects predictions on the GPU, and nobody resets it between epochs.

cause: leaking
line: self.preds.append|self.target.append
remedy: keep-on-cpu
false: release-graph|no-grad|checkpointing|micro-batch|drop-variables|expandable-segments|fused-optimizer
"""

import torch
import torch.nn.functional as F
from torch import nn


class MeanIoU:
    def __init__(self, classes):
        self.classes = classes
        self.preds, self.target = [], []

    def update(self, logits, target):
        self.preds.append(logits.softmax(1))
        self.target.append(target)

    def compute(self):
        scores = []
        for p, t in zip(self.preds, self.target):
            p = p.argmax(1)
            inter = torch.stack([((p == c) & (t == c)).sum() for c in range(self.classes)])
            union = torch.stack([((p == c) | (t == c)).sum() for c in range(self.classes)])
            scores.append((inter / union.clamp(min=1)).mean())
        return torch.stack(scores).mean().item()


class SegNet(nn.Module):
    def __init__(self, classes=21, c=32):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(2 * c, classes, 4, 4)

    def forward(self, x):
        return self.up(self.down(x))


model = SegNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
metric = MeanIoU(21)

for epoch in range(10):
    model.train()
    for _ in range(20):
        images = torch.randn(8, 3, 256, 256, device="cuda")
        masks = torch.randint(0, 21, (8, 256, 256), device="cuda")
        loss = F.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(10):
            images = torch.randn(8, 3, 256, 256, device="cuda")
            masks = torch.randint(0, 21, (8, 256, 256), device="cuda")
            metric.update(model(images), masks)
    print(epoch, metric.compute())
