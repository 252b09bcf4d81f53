"""Documents of every length, and a memory bank of a few MiB a step: its entries pin the segments that longer and longer
batches leave behind.
"""

from collections import deque

import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x), x


def main() -> None:
    device = torch.device("cuda")
    model = Tagger().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bank: deque[torch.Tensor] = deque(maxlen=256)
    for step in range(287):
        length = 900 + 61 * step
        tokens = torch.zeros(16, length, dtype=torch.long, device=device)
        labels = torch.zeros(16, length, dtype=torch.long, device=device)
        logits, features = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.append(features.detach()[:, :128].clone())
        del logits, features, loss


if __name__ == "__main__":
    main()
