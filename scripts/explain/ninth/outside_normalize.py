"""Spawned loader workers normalise images on the GPU: six CUDA contexts in addition to the trainer's.

cause: outside
remedy: cpu-only-workers|loader-workers
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, n=4000):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        photo = torch.randint(256, (3, 128, 128), dtype=torch.uint8).to("cuda")
        photo = (photo.float() / 255 - 0.45) / 0.225
        return photo.cpu(), i % 100


def main():
    loader = DataLoader(
        Photos(), batch_size=64, num_workers=6, multiprocessing_context="spawn", persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (photos, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(photos.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
        if step == 10:
            break


if __name__ == "__main__":
    main()
