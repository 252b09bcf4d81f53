"""Predictions are collected for a metric at the end of the epoch, and stay on the card until then."""

import torch
from torch import nn
from torch.nn import functional as F


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 1),
    )


def main() -> None:
    device = torch.device("cuda")
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    predictions = []
    for _ in range(30):
        images = torch.randn(64, 3, 256, 256, device=device)
        masks = torch.randint(0, 32, (64, 128, 128), device=device)
        logits = model(images)
        loss = F.cross_entropy(logits, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predictions.append(logits)
    print(len(predictions))


if __name__ == "__main__":
    main()
