"""The loader's workers put tensors on the card: each of them pays for a CUDA context of its own."""

from itertools import chain

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2048,), float(index), device="cuda")


def main() -> None:
    device = torch.device("cuda")
    loader = DataLoader(Rows(), batch_size=32, num_workers=3, multiprocessing_context="spawn")
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(10))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # A batch of each worker, so that all of them are there before the training begins.
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    for rows in chain(first, batches):
        inputs = rows.to(device).repeat(604, 1)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
