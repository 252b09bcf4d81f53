"""Land cover of 75 classes: logits and probabilities of the last tiles live on through the next step.

cause: two-batches-alive
line: probs = |logits = model(
remedy: drop-variables|micro-batch|smaller-batch|chunked-loss
"""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 75


class LandCover(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(4, 32, 3, 4, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 128, 3, 2, 1), nn.ReLU()
        )
        self.classify = nn.Conv2d(128, CLASSES, 1)

    def forward(self, x):
        return F.interpolate(self.classify(self.encoder(x)), size=x.shape[-2:], mode="nearest")


def iou(probs, masks):
    confident = probs.amax(1) > 0.5
    return (confident & (masks > 0)).sum() / (confident | (masks > 0)).sum().clamp(min=1)


model = LandCover().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for i in range(8):
        tiles = torch.rand(8, 4, 512, 512).cuda()
        masks = torch.randint(0, CLASSES, (8, 512, 512), device="cuda")
        logits = model(tiles)
        loss = F.cross_entropy(logits, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            probs = logits.softmax(1)
            print(f"{epoch}/{i} loss {loss.item():.3f} iou {iou(probs, masks).item():.3f}")
