"""A deep stack of feed-forward blocks, trained by one process with AdamW."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden):
        return hidden + self.down(F.gelu(self.up(self.norm(hidden))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--norm", choices=["layer", "batch"], default="layer")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        blocks = [Block(args.width, args.norm) for _ in range(args.layers)]
        model = nn.Sequential(*blocks, nn.Linear(args.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    length = 4 * args.batch_size
    data = TensorDataset(torch.randn(length, args.width), torch.randint(10, (length,)))
    for inputs, labels in DataLoader(data, batch_size=args.batch_size, shuffle=True):
        loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained")


if __name__ == "__main__":
    main()
