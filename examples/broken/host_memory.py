"""The dataset is read as a whole, and is larger than the host's memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self) -> None:
        # 1 TiB: a tensor on the CPU, which is far from the GPU's memory.
        self.values = torch.ones(1 << 30, 256)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index]


model = nn.Linear(256, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=16):
    loss = model(batch.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
