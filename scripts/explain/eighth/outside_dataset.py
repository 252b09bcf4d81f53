"""The dataset normalizes each sample on the GPU, so every loader worker opens a context of its own there.

cause: outside
line:
remedy: cpu-only-workers|loader-workers
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, n=100_000, device="cuda"):
        self.n, self.device = n, device

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        spectrum = torch.zeros(1, 1024).to(self.device)
        spectrum = (spectrum - spectrum.mean()) / (spectrum.std() + 1e-6)
        return spectrum.cpu(), index % 7


class ConvNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers = [nn.Conv1d(1, width, 7, padding=3), nn.ReLU()]
        for _ in range(7):
            layers += [nn.Conv1d(width, width, 7, padding=3), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(width, 7)

    def forward(self, x):
        return self.out(self.layers(x).mean(-1))


def main():
    loader = DataLoader(Spectra(), batch_size=64, num_workers=4, multiprocessing_context="fork")
    batches = iter(loader)
    first = next(batches)
    model = ConvNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        x, y = first
        x, y = x.repeat(15, 1, 1).cuda(), y.repeat(15).cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = next(batches)


if __name__ == "__main__":
    main()
