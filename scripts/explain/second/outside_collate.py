"""A collate function that moves batches to the card, in workers that are spawned.

cause: outside
line:
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def collate(rows):
    return torch.stack([row[0] for row in rows]).to("cuda")


def main():
    data = TensorDataset(torch.randn(64, 1700))
    loader = DataLoader(
        data, batch_size=16, collate_fn=collate, num_workers=3, multiprocessing_context="spawn"
    )
    model = nn.ModuleList(nn.Linear(1700, 1700) for _ in range(9)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        x = batch.repeat_interleave(700, dim=0)
        for layer in model:
            x = torch.relu(layer(x))
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
