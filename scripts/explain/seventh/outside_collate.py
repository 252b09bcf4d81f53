"""The loader's `collate_fn` puts each batch on the card, in each of its workers.

cause: outside
line:
remedy: cpu-only-workers|loader-workers
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((1024,), float(index))


def collate(samples):
    return torch.stack(samples).to("cuda")


def main():
    loader = DataLoader(
        Signals(),
        64,
        num_workers=4,
        collate_fn=collate,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    batches = iter(loader)
    first = [next(batches) for _ in range(4)]
    model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.GELU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for signals in first:
        x = signals.clone().repeat(560, 1)
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
