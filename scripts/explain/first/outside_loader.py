"""A data set that decodes straight to the card, in workers.

cause: outside
line:
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.linspace(0, index, 1536).cuda()


def make_loader() -> DataLoader:
    return DataLoader(
        Signals(128),
        batch_size=32,
        num_workers=3,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )


def main() -> None:
    loader = make_loader()
    model = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(10))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for signals in loader:
        batch = signals.repeat(892, 1)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
