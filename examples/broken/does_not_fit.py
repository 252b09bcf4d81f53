"""The weights alone are more than the card has."""

import torch
from torch import nn


def main() -> None:
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(8192, 8192, device=device) for _ in range(16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        inputs = torch.randn(16, 8192, device=device)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
