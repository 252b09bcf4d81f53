"""What a step made stays in its variables while the next forward runs."""

import torch
from torch import nn
from torch.nn import functional as F


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 1))


def main() -> None:
    device = torch.device("cuda")
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        images = torch.randn(16, 3, 256, 256, device=device)
        masks = torch.randint(0, 64, (16, 256, 256), device=device)
        scores = model(images)
        probabilities = scores.softmax(dim=1)
        loss = F.nll_loss(probabilities.clamp_min(1e-6).log(), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
