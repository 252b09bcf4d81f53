"""Forward and backward fit; the optimizer's first step makes its state, and temporaries of all parameters at once."""

import torch
from torch import nn


def main() -> None:
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(9))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        inputs = torch.randn(64, 4096, device=device)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
