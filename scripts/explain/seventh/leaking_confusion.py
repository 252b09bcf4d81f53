"""After each epoch a validation collects the scores of every pixel, to draw a curve at the end.

cause: leaking
line: scores.append|targets.append|sigmoid
remedy: keep-on-cpu
"""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.BCEWithLogitsLoss()
scores, targets = [], []


def batches(count, size=32):
    for _ in range(count):
        yield torch.rand(size, 3, 256, 256), torch.ones(size, 1, 256, 256)


def validate():
    model.eval()
    with torch.no_grad():
        for images, masks in batches(24, 64):
            logits = model(images.to("cuda"))
            scores.append(torch.sigmoid(logits))
            targets.append(masks.to("cuda"))
    model.train()


for epoch in range(8):
    for images, masks in batches(3):
        images, masks = images.to("cuda"), masks.to("cuda")
        loss = criterion(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    validate()
print(len(scores))
