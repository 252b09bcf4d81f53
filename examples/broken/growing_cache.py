"""A replay buffer grows by `torch.cat`: with each batch all of it is copied, and the old is there until the new is."""

import torch
from torch import nn


def main() -> None:
    device = torch.device("cuda")
    model = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 20 * 20, 6))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    states = torch.empty(0, 4, 84, 84, device=device)
    for _ in range(60):
        states = torch.cat([states, torch.rand(256, 4, 84, 84, device=device)])
        sample = states[torch.randint(0, len(states), (128,), device=device)]
        loss = model(sample).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
