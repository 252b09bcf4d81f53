"""Predictions of the whole validation set are concatenated on the card after each batch.

cause: growing-cache
line: torch.cat((predictions, logits))
remedy: keep-on-cpu|preallocate
"""

import torch
from torch import nn

CLASSES = 21


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, CLASSES, 1),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


def evaluate(model, loader):
    model.eval()
    predictions = targets = None
    with torch.no_grad():
        for images, masks in loader:
            logits = model(images.cuda())
            predictions = logits if predictions is None else torch.cat((predictions, logits))
            targets = masks if targets is None else torch.cat((targets, masks))
    return miou(predictions, targets.cuda())


def miou(predictions, targets):
    scores = []
    for c in range(CLASSES):
        p, t = predictions.argmax(1) == c, targets == c
        scores.append((p & t).sum() / ((p | t).sum() + 1))
    return torch.stack(scores).mean().item()


def dataset(batches, size=4):
    for _ in range(batches):
        yield torch.rand(size, 3, 512, 512), torch.randint(CLASSES, (size, 512, 512))


model = make_model().to("cuda")
print(f"mIoU {evaluate(model, dataset(22)):.3f}")
