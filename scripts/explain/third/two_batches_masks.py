"""Segmentation at full resolution; what a step returned stays under its name until the next step returns.

cause: two-batches-alive
line: step(|interpolate|self.upsample|logits
"""

import torch
import torch.nn.functional as F
from torch import nn


class Segmenter(nn.Module):
    def __init__(self, classes=19):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 4, 1), nn.ReLU(), nn.Conv2d(32, classes, 1))

    def forward(self, x):
        return F.interpolate(self.stem(x), scale_factor=4, mode="bilinear")


def step(model, optimizer, images, masks):
    logits = model(images)
    loss = F.cross_entropy(logits, masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach(), "logits": logits.detach(), "probabilities": logits.detach().softmax(1)}


model = Segmenter().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for index in range(4):
    images, masks = (
        torch.randn(12, 3, 512, 1024, device="cuda"),
        torch.randint(0, 19, (12, 512, 1024), device="cuda"),
    )
    result = step(model, optimizer, images, masks)
    if index == 3:
        print(result["loss"].item())
